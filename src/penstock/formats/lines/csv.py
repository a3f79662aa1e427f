"""CSV and TSV with a header line, quoted as RFC 4180 says; whatever else `csv.reader` understands is read with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.blocks.block import join_columns
from penstock.errors import ConfigError, CorruptShardError, IndexFieldError
from penstock.formats.base import check_projection
from penstock.formats.files import FileFormat, ScannedFile
from penstock.formats.lines.columns import to_column
from penstock.formats.lines.csv_rows import IrregularRowFinder, split_columns, split_rows
from penstock.formats.lines.find import QuotedRowFinder
from penstock.formats.lines.reader import BadRow, LineReader
from penstock.formats.lines.scan import scan_lines, to_shards
from penstock.formats.lines.values import TYPES, parse_values
from penstock.index.model import Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.formats.base import ReadOptions
    from penstock.formats.files import FileBytes, StoredObject
    from penstock.formats.lines.cut import RowBlock
    from penstock.formats.lines.find import RowFinder
    from penstock.index.model import ShardInfo, ShardLayout
    from penstock.types import Columns, Sample

_MOST_COLUMNS = 100_000


class CSVFileFormat(FileFormat):
    """Scans and opens files of values between commas."""

    suffixes: tuple[str, ...] = (".csv",)
    separator = ","
    setting_names = ("types",)
    setting_fields = ("is_regular",)

    def scan(self, file: StoredObject, settings: Mapping[str, Any]) -> ScannedFile:
        """Read the header and count the rows: by the parity of quotes or, where that does not hold, with `csv`."""
        types = _check_types(settings.get("types") or {})
        finder = QuotedRowFinder(ord(self.separator))
        scan, spans = scan_lines(file, finder, has_header=True)
        if not finder.is_regular:
            scan, spans = scan_lines(file, IrregularRowFinder(self.separator), has_header=True)
        rows = scan.head().rows
        header = read_header(rows[0], self.separator, scan.name) if rows else []
        shards = to_shards(spans, file, scan.num_bytes)
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
        check_projection(layout, options)

    def open(self, parts: Sequence[FileBytes], info: ShardInfo, options: ReadOptions) -> LineReader:
        """Open a span of rows."""
        self.check(info.layout, options)
        finder: RowFinder = QuotedRowFinder(ord(self.separator))
        if not info.layout.settings.get("is_regular", True):
            finder = IrregularRowFinder(self.separator)
        types = tuple((column.name, column.encoding) for column in info.layout.columns)
        return LineReader(parts[0], info, finder, CSVParser(self.separator, types, options.columns))


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
