"""JSON, CSV, TSV and XSV: a data file of lines, and a meta file that says where each begins."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.errors import (
    ColumnNameError,
    ColumnTypeError,
    ColumnValueError,
    IndexFieldError,
    UnknownEncodingError,
)
from penstock.formats.base import ShardFormat
from penstock.formats.body import BodyBuilder
from penstock.formats.column_errors import encode_error
from penstock.formats.encodings.numbers import plain_number
from penstock.formats.lines.cut import BadRow
from penstock.formats.lines.json_values import parse_objects, pick_fields
from penstock.formats.lines.reader import LineReader, OpenRows
from penstock.formats.rows import check_rows, max_samples, read_offsets, write_offsets
from penstock.index.model import Column
from penstock.index.mosaic_json import dump_header

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    from typing_extensions import Buffer

    from penstock.formats.base import ReadOptions, Rows, ShardBytes
    from penstock.formats.body import ChunkPool
    from penstock.formats.lines.cut import RowBlock
    from penstock.index.model import IndexedShard, ShardLayout
    from penstock.types import Columns, Sample

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
        super().check(layout, options)


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


def _open_rows(
    parts: Sequence[ShardBytes], info: IndexedShard, options: ReadOptions, separator: str | None = None
) -> tuple[Sequence[ShardBytes], OpenRows, TextShardParser]:
    """Find the rows of a shard, and what parses them: all that a reader takes."""
    data, meta = parts
    offsets = read_offsets(meta, info.num_samples, begin=None, end=len(data), shard=info.name)
    parser = TextShardParser(tuple(_kinds(info.layout)), _newline(info.layout), separator, options.columns)
    return parts, OpenRows(info.name, data, offsets), parser


@dataclass(frozen=True, slots=True)
class TextShardParser:
    """Makes samples of the lines of a shard."""

    kinds: tuple[tuple[str, type], ...]  # of all columns, by name
    newline: str
    separator: str | None  # None: a line is JSON
    wanted: tuple[str, ...] | None

    def parse(self, rows: Sequence[bytes]) -> list[Sample]:
        """Parse all rows."""
        if self.separator is None:
            newline = self.newline.encode()
            return parse_objects([row.removesuffix(newline) for row in rows])
        try:
            lines = [row.decode().removesuffix(self.newline).split(self.separator) for row in rows]
            return [{name: kind(text) for (name, kind), text in zip(self.kinds, line, strict=True)} for line in lines]
        except ValueError as error:
            raise BadRow(f"the line does not have the {len(self.kinds)} columns of the dataset: {error}") from error

    def parse_block(self, block: RowBlock) -> None:  # noqa: ARG002
        """Leave rows to be looked at one by one."""
        return

    def samples(self, parsed: list[Sample]) -> list[Sample]:
        """Return those columns that are wanted."""
        return pick_fields(parsed, self.wanted)

    def columns(self, parsed: list[Sample], begin: int = 0, end: int | None = None) -> Columns:
        """Return numbers as arrays where 64 bits hold them, else lists."""
        return {
            name: _to_column(kind, [sample.get(name) for sample in parsed[begin:end]])
            for name, kind in self.kinds
            if self.wanted is None or name in self.wanted
        }


class TextReader(LineReader):
    """One open shard of a format of yours, whose lines a function parses.

    Args:
        parts: The bytes of the shard.
        info: How it stands in the index.
        parse: Makes samples of lines, each with what ends it; it is given the numbers of their rows, too, for errors.
        options: Which columns are wanted.
    """

    row_layout = None  # type: ignore[assignment]  # lines of several shards together would have no numbers

    def __init__(
        self,
        parts: Sequence[ShardBytes],
        info: IndexedShard,
        parse: Callable[[list[bytes], list[int]], list[Sample]],
        options: ReadOptions,
    ) -> None:
        super().__init__(*_open_rows(parts, info, options))
        self._parse_lines = parse

    def _parse(self, rows: Rows) -> list[Sample]:
        numbers = check_rows(rows, len(self), self.name)
        stored = self.gather_rows(numbers)
        return [] if stored is None else self._parse_lines(stored.lines, numbers.tolist())


def _to_column(kind: type, values: list[Any]) -> npt.NDArray[Any] | list[Any]:
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

    def open(self, parts: Sequence[ShardBytes], info: IndexedShard, options: ReadOptions) -> LineReader:
        """Open a shard."""
        self.check(info.layout, options)
        return LineReader(*_open_rows(parts, info, options))

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


# --- CSV, TSV and XSV: values between separators, with no quoting at all, under a header line ----------------


class XSVFormat(TextFormat):
    """Opens and builds shards with any separator."""

    separator: str | None = None  # None: the layout tells
    setting_fields: tuple[str, ...] = ("newline", "separator")

    def open(self, parts: Sequence[ShardBytes], info: IndexedShard, options: ReadOptions) -> LineReader:
        """Open a shard."""
        self.check(info.layout, options)
        return LineReader(*_open_rows(parts, info, options, self._separator(info.layout)))

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
