"""What JSON, CSV, TSV and XSV shards share: a data file of lines, and a meta file that says where each begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.codecs.unpack import check_whole, release, rest
from penstock.errors import ColumnNameError, ColumnTypeError, ColumnValueError, IndexFieldError, UnknownEncodingError
from penstock.formats.base import ShardFormat
from penstock.formats.body import BodyBuilder
from penstock.formats.column_errors import encode_error
from penstock.formats.offsets import max_samples, read_offsets, write_offsets
from penstock.formats.rows import check_projection, check_rows
from penstock.index.model import Column
from penstock.index.mosaic_json import dump_header

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    from typing_extensions import Buffer

    from penstock.formats.base import ReadOptions, Rows, ShardBytes
    from penstock.formats.body import ChunkPool
    from penstock.index.model import Part, ShardInfo, ShardLayout
    from penstock.types import Columns, Int64Array, Sample

ENCODINGS: dict[str, type] = {"str": str, "int": int, "float": float}
META_SUFFIX = ".meta"


class TextFormat(ShardFormat, Protocol):
    """The part of a text format that does not depend on how a line looks."""

    part_suffixes: tuple[str, ...] = ("", META_SUFFIX)
    column_fields: tuple[str, ...] = ("column_names", "column_encodings")
    setting_fields: tuple[str, ...] = ("newline",)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Lines and values are told apart by some text."""
        for name, value in settings.items():
            if not (isinstance(value, str) and value):
                raise IndexFieldError(f"lacks a '{name}' of at least one character")

    def max_samples(self, parts: Sequence[Part]) -> int:
        """Each sample has an offset in the meta file."""
        return max_samples(parts[-1].raw.num_bytes)

    def columns(self, encodings: Mapping[str, str]) -> tuple[Column, ...]:
        """Sort the columns by name and refuse encodings that are not text's."""
        for name, text in encodings.items():
            _check_encoding(text)
            _check_name(name)
        return tuple(Column(name, text) for name, text in sorted(encodings.items()))

    def infer(self, sample: Sample) -> dict[str, str]:
        """Choose the encoding of each column by the values of a first sample."""
        return {name: _infer(name, value) for name, value in sample.items()}

    def check(self, layout: ShardLayout, options: ReadOptions) -> None:
        """Refuse unknown encodings and columns that are not there."""
        for column in layout.columns:
            _check_encoding(column.encoding)
        check_projection(layout, options)


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ColumnNameError(f"column {name!r} has a name that UTF-8 cannot spell") from error


def _check_encoding(text: str) -> None:
    if text not in ENCODINGS:
        raise UnknownEncodingError(f"unknown column encoding {text!r}: a text format knows {', '.join(ENCODINGS)}")


def _infer(name: str, value: Any) -> str:
    for text, kind in ENCODINGS.items():
        if isinstance(value, kind):
            return text
    raise ColumnTypeError(
        f"column {name!r} holds a {type(value).__name__}: text formats store {', '.join(ENCODINGS)}",
        column=name,
    )


class TextReader:
    """One open text shard; its lines are parsed in batches."""

    def __init__(
        self,
        parts: Sequence[ShardBytes],
        info: ShardInfo,
        parse: Callable[[list[bytes], list[int]], list[Sample]],
        options: ReadOptions,
    ) -> None:
        self._data, self._meta = parts
        self._name = info.name
        self._layout = info.layout
        self._parse = parse
        self._wanted = options.columns
        self._offsets: npt.NDArray[np.uint32] | None = read_offsets(
            self._meta, info.num_samples, begin=None, end=len(self._data), shard=info.name
        )
        self._num_samples = info.num_samples

    def __len__(self) -> int:
        return self._num_samples

    def read(self, rows: Rows) -> list[Sample]:
        """Give the samples at these rows, in this order."""
        numbers = check_rows(rows, self._num_samples, self._name)
        for part in (self._data, self._meta):
            check_whole(part, self._name)
        samples = self._parse(self._lines(numbers), numbers.tolist())
        if self._wanted is None:
            return samples
        return [{name: sample[name] for name in self._wanted if name in sample} for sample in samples]

    def read_columns(self, rows: Rows) -> Columns:
        """Give the same by column: numbers as an array where 64 bits hold them, else a list."""
        samples = self.read(rows)
        wanted = self._wanted
        columns = [column for column in self._layout.columns if wanted is None or column.name in wanted]
        return {column.name: _to_column(column, [sample.get(column.name) for sample in samples]) for column in columns}

    def rest(self) -> None:
        """Take the shard's pages out of memory."""
        for part in (self._data, self._meta):
            rest(part)

    def close(self) -> None:
        """Unmap the shard."""
        self._offsets = None  # it points into the mapping, which closes only when nobody does
        self._num_samples = 0
        for part in (self._data, self._meta):
            release(part)

    def _lines(self, rows: Int64Array) -> list[bytes]:
        if self._offsets is None:
            return []
        data, begins, ends = self._data, self._offsets[rows].tolist(), self._offsets[rows + 1].tolist()
        return [data[begin:end] for begin, end in zip(begins, ends, strict=True)]


def _to_column(column: Column, values: list[Any]) -> npt.NDArray[Any] | list[Any]:
    kind = ENCODINGS[column.encoding]
    if kind is str or not all(type(value) is kind for value in values):
        return values
    try:
        return np.array(values, np.int64 if kind is int else np.float64)
    except OverflowError:  # wider than 64 bits
        return values


class TextBuilder(BodyBuilder):
    """One text shard in the making."""

    sample_overhead = 0

    def __init__(self, layout: ShardLayout, pool: ChunkPool, first_line: bytes = b"") -> None:
        self._header = dump_header(layout)
        self._columns = [(column.name, ENCODINGS[column.encoding]) for column in layout.columns]
        self._newline = layout.settings.get("newline") or "\n"
        self._first_line = first_line
        super().__init__(pool, num_bytes=0, uncounted=len(first_line), front_bytes=len(first_line))

    def line(self, values: dict[str, Any]) -> str:
        """Give a sample as text, without newline."""
        raise NotImplementedError

    def encode(self, sample: Sample) -> bytes:
        """Check the values and give the line."""
        values = {}
        name = ""
        try:
            for name, kind in self._columns:
                value = sample[name]
                if not isinstance(value, kind):
                    raise ColumnTypeError(f"wants {kind.__name__}, got {type(value).__name__}")
                if isinstance(value, str):
                    value.encode()  # to name the column that cannot be
                values[name] = value
            return (self.line(values) + self._newline).encode()
        except ColumnValueError:
            raise
        except Exception as error:
            raise encode_error(sample, name, error) from error

    def build(self) -> list[list[Buffer]]:
        """Give the data file and the meta file."""
        offsets = write_offsets(self._body.ends(), len(self._first_line))
        return [self._body.pieces(self._first_line), [offsets, self._header]]
