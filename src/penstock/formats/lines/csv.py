"""CSV and TSV with a header line, quoted as RFC 4180 says; whatever else `csv.reader` understands is read with it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.blocks.block import join_columns, to_column
from penstock.errors import ConfigError, CorruptShardError, IndexFieldError
from penstock.formats.files import ScannedFile
from penstock.formats.lines.cut import NEWLINE, BadRow, FoundLines, QuotedRowFinder
from penstock.formats.lines.format import LineFormat
from penstock.formats.lines.scan import scan_lines, to_shards
from penstock.index.model import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.formats.base import ReadOptions
    from penstock.formats.files import FilesReading, StoredObject
    from penstock.formats.lines.cut import Bytes, RowBlock
    from penstock.index.model import ShardLayout
    from penstock.types import Columns, Sample


_MOST_COLUMNS = 100_000


class CSVFileFormat(LineFormat):
    """Scans and opens files of values between commas, or between other characters."""

    suffixes: tuple[str, ...] = (".csv",)
    separator = ","
    setting_names = ("types",)
    setting_fields = ("is_regular",)
    has_header = True

    def __init__(self, separator: str | None = None) -> None:
        self.separator = separator or self.separator

    def scan(self, file: StoredObject, settings: Mapping[str, Any]) -> ScannedFile:
        """Read the header and count the rows: by the parity of quotes or, where that does not hold, with `csv`."""
        types = _check_types(settings.get("types") or {})
        finder = self.finder({})
        scan = scan_lines(file, finder, has_header=True)
        rows = scan.rows
        header = read_header(rows[0], self.separator, file.name) if rows else []
        shards = to_shards(scan, file)
        for name in types:
            if header and name not in header:
                raise ConfigError(
                    f"types= names column {name!r}, but {file.name} has the columns {', '.join(header)}", path=file.name
                )
        columns = tuple(Column(name, types.get(name, "str")) for name in header)
        return ScannedFile(columns, shards, {"is_regular": finder.is_regular})

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Check whether quotes are as RFC 4180 wants them."""
        if type(settings.get("is_regular")) is not bool:
            raise IndexFieldError("has 'is_regular' that is neither true nor false")

    def check(self, layout: ShardLayout, options: ReadOptions) -> None:
        """Refuse unknown types, and columns that are not there."""
        _check_types({column.name: column.encoding for column in layout.columns})
        super().check(layout, options)

    def finder(self, settings: Mapping[str, Any]) -> CSVRowFinder:
        """Find rows by the parity of quotes, unless a scan saw that it does not hold."""
        return CSVRowFinder(self.separator, is_regular=settings.get("is_regular", True))

    def parser(self, columns: tuple[Column, ...], wanted: tuple[str, ...] | None) -> CSVParser:
        """Make samples of some columns."""
        return CSVParser(self.separator, tuple((column.name, column.encoding) for column in columns), wanted)

    def parser_in_order(self, name: str, header: bytes | None, reading: FilesReading) -> CSVParser:
        """Make samples of some columns of a file, which must have those of the first file."""
        names = read_header(header, self.separator, name) if header else []
        reading.first = reading.first or (name, names)
        first_name, first = reading.first
        if reading.columns is None and set(names) != set(first):
            raise CorruptShardError(
                f"{name} has the columns {', '.join(names)}, but {first_name} has {', '.join(first)}: pass columns="
                " that all files have, or make a source of each kind",
                path=name,
            )
        types = reading.settings.get("types") or {}
        for wanted in (*(reading.columns or ()), *types):
            if wanted not in names:
                raise ConfigError(f"{name} has no column {wanted!r}: it has {', '.join(names)}", path=name)
        return CSVParser(self.separator, tuple((each, types.get(each, "str")) for each in names), reading.columns)


class TSVFileFormat(CSVFileFormat):
    """Scans and opens files of values between tabs."""

    suffixes = (".tsv", ".tab")
    separator = "\t"


def _check_types(types: Any) -> Mapping[str, str]:
    if not isinstance(types, dict):
        raise ConfigError(f'types must be a dict such as {{"label": "int"}}, got {type(types).__name__}')
    for name, kind in types.items():
        if kind not in TYPES:
            raise ConfigError(f"unknown type {kind!r} for column {name!r}: use one of {', '.join(TYPES)}")
    return types


def read_header(row: bytes, separator: str, where: str) -> list[str]:
    """Read the names of the columns from the first row of a file."""
    no_names = CorruptShardError(f"{where} does not begin with a line of column names", path=where)
    if b"\0" in row:  # asked first: before Python 3.11, its parser refuses these
        raise no_names
    try:
        [names] = split_rows([row], separator)
    except BadRow as error:
        raise CorruptShardError(f"{where} has a header that cannot be read: {error}", path=where) from error
    if len(names) > _MOST_COLUMNS:
        raise no_names
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise CorruptShardError(
            f"{where} has several columns called {', '.join(map(repr, twice))}: rename them in its header", path=where
        )
    return names


class ParsedRows(NamedTuple):
    """The values of some rows, by column."""

    num_rows: int
    values: dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class CSVParser:
    """Makes samples of rows of CSV."""

    separator: str
    types: tuple[tuple[str, str], ...]  # of all columns, by name, in the order of the file
    wanted: tuple[str, ...] | None

    def parse(self, rows: Sequence[bytes]) -> ParsedRows:
        """Parse all rows, and the values of those columns that are wanted."""
        fields = split_rows(rows, self.separator)
        num_columns = len(self.types)
        lengths = set(map(len, fields)) - {num_columns}
        if lengths:
            raise BadRow(f"the row has {min(lengths)} fields, but the header has {num_columns}")
        return self._values(len(rows), list(zip(*fields, strict=True)))

    def parse_block(self, block: RowBlock) -> ParsedRows | None:
        """Parse rows that stand one after the other, which is quicker; None if they have to be looked at one by one."""
        columns = split_columns(block.data, block.num_rows, len(self.types), self.separator)
        return None if columns is None else self._values(block.num_rows, columns)

    def _values(self, num_rows: int, columns: Sequence[Sequence[str]]) -> ParsedRows:
        texts = dict(zip((name for name, _ in self.types), columns, strict=True)) if columns else {}
        kinds = dict(self.types)
        names = list(kinds) if self.wanted is None else self.wanted
        return ParsedRows(num_rows, {name: parse_values(name, kinds[name], texts.get(name, ())) for name in names})

    def samples(self, parsed: ParsedRows) -> list[Sample]:
        """Return a sample for each row."""
        return join_columns(tuple(parsed.values), list(parsed.values.values()), parsed.num_rows)

    def columns(self, parsed: ParsedRows, begin: int = 0, end: int | None = None) -> Columns:
        """Return text as lists, and numbers as arrays if none is missing."""
        return {name: to_column(values[begin:end]) for name, values in parsed.values.items()}


def split_columns(data: bytes, num_rows: int, num_columns: int, separator: str) -> list[list[str]] | None:
    """Return the fields of rows that stand one after the other, by column; None if they must be read one by one.

    Without any quote, fields are what lies between separators and newlines.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if '"' not in text:
        text = text.replace("\r\n", "\n") if "\r" in text else text
        lines = text.removesuffix("\n")
        is_regular = lines.count("\n") + 1 == num_rows and lines.count(separator) == num_rows * (num_columns - 1)
        if is_regular and "\r" not in lines and _have_fields(lines, num_columns, separator):
            fields = lines.replace("\n", separator).split(separator)
            return [fields[number::num_columns] for number in range(num_columns)]
    _allow_fields(len(text))
    try:
        rows = list(filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=separator)))
    except csv.Error:
        return None
    if len(rows) != num_rows or set(map(len, rows)) != {num_columns}:
        return None
    return [list(column) for column in zip(*rows, strict=True)]


def _have_fields(lines: str, num_columns: int, separator: str) -> bool:
    """Return whether each line has so many fields, if that is what they have on average: no line has fewer."""
    codes = np.frombuffer(lines.encode(), np.uint8)
    ends = np.flatnonzero((codes == NEWLINE) | (codes == ord(separator)))
    return bool((codes[ends[num_columns - 1 :: num_columns]] == NEWLINE).all())


def split_rows(rows: Sequence[bytes], separator: str) -> list[list[str]]:
    """Return the fields of each row; raise `BadRow` if one cannot be read alone."""
    try:
        texts = list(map(bytes.decode, rows))
    except UnicodeDecodeError as error:
        raise BadRow(f"the row is not UTF-8: {error}") from error
    _allow_fields(max(map(len, texts), default=0))
    try:
        # Each row is a "line" to the reader, whatever newlines it has within quotes.
        fields = list(csv.reader(texts, delimiter=separator))
    except csv.Error as error:
        raise BadRow(f"the row is not CSV: {error}") from error
    if len(fields) != len(rows):
        raise BadRow("the row does not end with its line: a quote is missing, or there is one too many")
    return fields


def _allow_fields(num_chars: int) -> None:
    """Let `csv` take fields of this length. It has one limit for the whole process, which may rise but never falls."""
    if num_chars > csv.field_size_limit():
        csv.field_size_limit(num_chars)


class IrregularRowFinder:
    """Finds the rows of files in which quotes stand anywhere, by reading them all with `csv.reader`."""

    def __init__(self, separator: str, rest: bytes = b"", *, is_known: bool = False, position: int = 0) -> None:
        self._separator = separator
        self._rest = rest  # the last row, which may go on
        self._is_known = is_known  # it was given out already
        self._position = position

    def find(self, chunk: Bytes) -> FoundLines:
        """Return the rows that begin in this chunk."""
        newlines = np.flatnonzero(chunk == NEWLINE) + self._position
        data = self._rest + chunk.tobytes()
        base = self._position - len(self._rest)
        self._position += len(chunk)
        _allow_fields(len(data))
        # The structure of rows is ASCII, so bytes may pass for characters.
        lines = list(io.StringIO(data.decode("latin-1"), newline="\n"))
        offsets = np.cumsum([0, *map(len, lines)]).tolist()
        reader = csv.reader(lines, delimiter=self._separator)
        begins: list[int] = []
        last, is_row, line = 0, False, 0
        while line < len(lines):
            last, is_row = offsets[line], _read_row(reader)
            if is_row and not (last == 0 and self._is_known):
                begins.append(base + last)
            line = reader.line_num
        self._rest = data[last:]
        self._is_known = is_row
        return FoundLines(np.array(begins, np.int64), newlines)


class CSVRowFinder:
    """Finds the rows of any file: by the parity of quotes for as long as that holds, and from there on with `csv`."""

    def __init__(self, separator: str, *, is_regular: bool = True) -> None:
        self._separator = separator
        self._by_parity = QuotedRowFinder(ord(separator))
        self._by_reading = None if is_regular else IrregularRowFinder(separator)
        # The last row that was given out, as far as it was seen; if there is none, all that was seen.
        self._last, self._has_row, self._position = b"", False, 0

    @property
    def is_regular(self) -> bool:
        """Whether the parity of quotes holds so far."""
        return self._by_reading is None

    def find(self, chunk: Bytes) -> FoundLines:
        """Return the rows that begin in this chunk."""
        if self._by_reading is not None:
            return self._by_reading.find(chunk)
        found = self._by_parity.find(chunk)
        if not self._by_parity.is_regular:
            self._by_reading = IrregularRowFinder(
                self._separator, self._last, is_known=self._has_row, position=self._position
            )
            return self._by_reading.find(chunk)
        first = int(found.begins[-1]) - self._position if len(found) else -1
        seen = self._last + chunk.tobytes() if first < 0 else chunk[first:].tobytes()
        self._last, self._has_row, self._position = seen, self._has_row or bool(len(found)), self._position + len(chunk)
        return found


def _read_row(reader: object) -> bool:
    """Read the next row, and tell whether it is one: neither blank nor the end of all."""
    try:
        return bool(next(reader))  # type: ignore[call-overload]
    except csv.Error:
        return True  # reading it will show why


_BOOLS = {"true": True, "false": False, "1": True, "0": False}


def _to_bool(text: str) -> bool:
    try:
        return _BOOLS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r:.100} is not one of true, false, 1, 0") from None


# "str" is what is in the file. For the others, an empty field is None.
TYPES: dict[str, Callable[[str], Any] | None] = {
    "str": None,
    "int": int,
    "float": float,
    "bool": _to_bool,
    "json": json.loads,
}


def parse_values(column: str, kind: str, texts: Sequence[str]) -> list[Any]:
    """Parse the values of one column; raise `BadRow` if one is not of this kind."""
    parse = TYPES[kind]
    if parse is None:
        return list(texts)
    try:
        if "" in texts:
            return [parse(text) if text else None for text in texts]
        return list(map(parse, texts))
    except (ValueError, RecursionError) as error:
        raise BadRow(f"column {column!r} is not of type {kind}: {error}") from error
