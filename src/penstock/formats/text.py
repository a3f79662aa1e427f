"""JSON, CSV, TSV and XSV: a data file of lines, and a meta file that says where each begins."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.codecs.unpack import check_whole, drop_pages, release
from penstock.errors import (
    ColumnNameError,
    ColumnTypeError,
    ColumnValueError,
    CorruptShardError,
    IndexFieldError,
    UnknownEncodingError,
)
from penstock.formats.base import ShardFormat, check_projection
from penstock.formats.body import BodyBuilder
from penstock.formats.column_errors import encode_error
from penstock.formats.encodings.numbers import plain_number
from penstock.formats.rows import check_rows, max_samples, read_offsets, write_offsets
from penstock.index.model import Column
from penstock.index.mosaic_json import dump_header
from penstock.thread_times import decoding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    from typing_extensions import Buffer

    from penstock.formats.base import ReadOptions, Rows, ShardBytes
    from penstock.formats.body import ChunkPool
    from penstock.index.model import ShardInfo, ShardLayout
    from penstock.types import Columns, Int64Array, Sample

ENCODINGS: dict[str, type] = {"str": str, "int": int, "float": float}
_NUMBERS = {int: (int, np.integer), float: (float, np.floating)}
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
                raise IndexFieldError(f"needs a '{name}' of at least one character")

    def max_samples(self, raw_sizes: Sequence[int]) -> int:
        """Each sample has an offset in the meta file."""
        return max_samples(raw_sizes[-1])

    def columns(self, encodings: Mapping[str, str]) -> tuple[Column, ...]:
        """Sort the columns by name and refuse encodings that are not text's."""
        for name, text in encodings.items():
            _check_encoding(text)
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise ColumnNameError(f"column {name!r} has a name that cannot be written in UTF-8") from error
        return tuple(Column(name, text) for name, text in sorted(encodings.items()))

    def infer(self, sample: Sample) -> dict[str, str]:
        """Choose the encoding of each column by the values of a first sample."""
        return {name: _infer(name, value) for name, value in sample.items()}

    def check(self, layout: ShardLayout, options: ReadOptions) -> None:
        """Refuse unknown encodings and columns that are not there."""
        for column in layout.columns:
            _check_encoding(column.encoding)
        check_projection(layout, options)


def _check_encoding(text: str) -> None:
    if text not in ENCODINGS:
        raise UnknownEncodingError(f"unknown column encoding {text!r}: text formats have {', '.join(ENCODINGS)}")


def _newline(layout: ShardLayout) -> str:
    return layout.settings.get("newline") or "\n"


def _kinds(layout: ShardLayout) -> list[tuple[str, type]]:
    return [(column.name, ENCODINGS[column.encoding]) for column in layout.columns]


def _infer(name: str, value: Any) -> str:
    for text, kind in ENCODINGS.items():
        if isinstance(value, kind) or isinstance(plain_number(value), _NUMBERS.get(kind, ())):
            return text
    raise ColumnTypeError(
        f"column {name!r} holds a value of type {type(value).__name__}: text formats can store {', '.join(ENCODINGS)}",
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
        """Return the samples at these rows, in this order."""
        numbers = check_rows(rows, self._num_samples, self._name)
        for part in (self._data, self._meta):
            check_whole(part, self._name)
        lines = self._lines(numbers)
        with decoding:
            samples = self._parse(lines, numbers.tolist())
        if self._wanted is None:
            return samples
        return [{name: sample[name] for name in self._wanted if name in sample} for sample in samples]

    def read_columns(self, rows: Rows) -> Columns:
        """Return the same by column: numbers as an array where 64 bits hold them, else a list."""
        samples = self.read(rows)
        wanted = self._wanted
        columns = [column for column in self._layout.columns if wanted is None or column.name in wanted]
        return {column.name: _to_column(column, [sample.get(column.name) for sample in samples]) for column in columns}

    def drop_pages(self) -> None:
        """Take the shard's pages out of memory."""
        for part in (self._data, self._meta):
            drop_pages(part)

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
    keeps_bools = False  # whether True comes back from an int column as it was

    def __init__(self, layout: ShardLayout, pool: ChunkPool, first_line: bytes = b"") -> None:
        self._header = dump_header(layout)
        self._columns = _kinds(layout)
        self._newline = _newline(layout)
        self._first_line = first_line
        super().__init__(pool, num_bytes=0, uncounted=len(first_line), front_bytes=len(first_line))

    def line(self, values: dict[str, Any]) -> str:
        """Return a sample as text, without newline."""
        raise NotImplementedError

    def encode(self, sample: Sample) -> bytes:
        """Check the values and give the line."""
        values = {}
        name = ""
        try:
            for name, kind in self._columns:
                value = sample[name]
                if value.__class__ is not kind:
                    value = self.convert(value, kind)
                if kind is str:
                    value.encode()  # to name the column that cannot be
                values[name] = value
            return (self.line(values) + self._newline).encode()
        except ColumnValueError:
            raise
        except Exception as error:
            raise encode_error(sample, name, error) from error

    def convert(self, value: Any, kind: type) -> Any:
        """Take what is of this kind under another name: a NumPy scalar, a tensor of one number, a subclass."""
        if isinstance(value, bool) and kind is int and not self.keeps_bools:
            raise ColumnTypeError(f"expects an int, got bool, which would come back as {int(value)}: pass int(value)")
        if isinstance(value, (bool, str)) and isinstance(value, kind):
            return value
        number = plain_number(value)
        if isinstance(number, _NUMBERS.get(kind, ())):
            return kind(number)
        raise ColumnTypeError(f"expects {kind.__name__}, got {type(value).__name__}: pass {kind.__name__}(value)")

    def build(self) -> list[list[Buffer]]:
        """Return the data file and the meta file."""
        offsets = write_offsets(self.ends(), len(self._first_line))
        return [self.pieces(self._first_line), [offsets, self._header]]


# --- JSON: one object a line ---------------------------------------------------------------------------------


class JSONFormat(TextFormat):
    """Opens and builds JSON shards."""

    column_fields = ("columns",)

    def dump_columns(self, columns: Sequence[Column]) -> dict[str, Any]:
        """Return one object of names and encodings."""
        return {"columns": {column.name: column.encoding for column in columns}}

    def parse_columns(self, fields: Mapping[str, Any]) -> tuple[Column, ...]:
        """Understand this object."""
        columns = fields["columns"]
        if not isinstance(columns, dict):
            raise IndexFieldError("has 'columns' that is not an object")
        return tuple(map(Column, columns, columns.values()))

    def open(self, parts: Sequence[ShardBytes], info: ShardInfo, options: ReadOptions) -> TextReader:
        """Open a shard."""
        self.check(info.layout, options)
        parse = partial(_parse_lines, newline=_newline(info.layout).encode(), shard=info.name)
        return TextReader(parts, info, parse, options)

    def builder(self, layout: ShardLayout, pool: ChunkPool) -> JSONBuilder:
        """Begin a shard."""
        return JSONBuilder(layout, pool)


class JSONBuilder(TextBuilder):
    """One JSON shard in the making."""

    keeps_bools = True
    _encode = json.JSONEncoder().encode

    def line(self, values: dict[str, Any]) -> str:
        """Return the JSON text; its keys are sorted because the columns are."""
        return self._encode(values)


def _parse_lines(lines: list[bytes], rows: list[int], *, newline: bytes, shard: str) -> list[Sample]:
    lines = [line.removesuffix(newline) for line in lines]
    try:
        # One call for the whole batch. A raw newline is no part of any JSON string, so lines cannot flow together.
        samples: list[Any] = json.loads(b"[" + b"\n,\n".join(lines) + b"]")
    except (ValueError, RecursionError):
        samples = []
    if len(samples) == len(lines) and all(type(sample) is dict for sample in samples):
        return samples
    return [_parse_line(line, row, shard) for line, row in zip(lines, rows, strict=True)]


def _parse_line(line: bytes, row: int, shard: str) -> Sample:
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorruptShardError(f"{shard}, row {row}: the line is not JSON: {error}", shard=shard, row=row) from error
    if type(sample) is not dict:
        raise CorruptShardError(f"{shard}, row {row}: the line is not a JSON object", shard=shard, row=row)
    return sample


# --- CSV, TSV and XSV: values between separators, with no quoting at all, under a header line ----------------


class XSVFormat(TextFormat):
    """Opens and builds shards with any separator."""

    separator: str | None = None  # None: the layout tells
    setting_fields: tuple[str, ...] = ("newline", "separator")

    def open(self, parts: Sequence[ShardBytes], info: ShardInfo, options: ReadOptions) -> TextReader:
        """Open a shard."""
        self.check(info.layout, options)
        shard, columns = info.name, _kinds(info.layout)
        newline, separator = _newline(info.layout), self._separator(info.layout)

        def parse_line(line: bytes, row: int) -> Sample:
            try:
                values = line.decode().removesuffix(newline).split(separator)
                return {name: kind(value) for (name, kind), value in zip(columns, values, strict=True)}
            except ValueError as error:
                raise CorruptShardError(
                    f"{shard}, row {row}: the line does not have the {len(columns)} columns of the dataset: {error}",
                    shard=shard,
                    row=row,
                ) from error

        return TextReader(parts, info, lambda lines, rows: list(map(parse_line, lines, rows)), options)

    def builder(self, layout: ShardLayout, pool: ChunkPool) -> DelimitedBuilder:
        """Begin a shard."""
        return DelimitedBuilder(layout, pool, self._separator(layout))

    def _separator(self, layout: ShardLayout) -> str:
        return self.separator or layout.settings.get("separator") or ","


class CSVFormat(XSVFormat):
    """Opens and builds shards with commas."""

    separator = ","
    setting_fields = ("newline",)


class TSVFormat(XSVFormat):
    """Opens and builds shards with tabs."""

    separator = "\t"
    setting_fields = ("newline",)


class DelimitedBuilder(TextBuilder):
    """One shard of separated values in the making."""

    def __init__(self, layout: ShardLayout, pool: ChunkPool, separator: str) -> None:
        self._separator = separator
        newline = _newline(layout)
        names = [column.name for column in layout.columns]
        for name in names:
            if separator in name or newline in name:
                raise ColumnNameError(
                    f"column {name!r} contains the separator {separator!r} or the newline {newline!r}"
                )
        super().__init__(layout, pool, (separator.join(names) + newline).encode())

    def line(self, values: dict[str, Any]) -> str:
        """Join the values; none may contain what tells them apart, nor a piece of it that would look like it."""
        texts = list(map(str, values.values()))
        line = self._separator.join(texts)
        fields = line.split(self._separator)
        if fields == texts and self._newline not in line:
            return line
        pairs = zip(values, texts, fields, strict=False)
        name = next(name for name, text, field in pairs if text != field or self._newline in text)
        raise ColumnValueError(
            f"column {name!r} contains the separator {self._separator!r} or the newline {self._newline!r}, or ends"
            " with a part of one, and this format has no quoting: use JSONWriter or MDSWriter",
            column=name,
        )
