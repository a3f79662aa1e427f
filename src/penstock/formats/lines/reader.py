"""One open shard of lines: any of its rows, parsed a whole batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.codecs.unpack import check_whole, sliceable
from penstock.errors import CorruptShardError
from penstock.formats.gather import MappedReader, in_order
from penstock.formats.lines.cut import BadRow
from penstock.formats.lines.scan import find_rows, load_details
from penstock.formats.rows import check_rows
from penstock.thread_times import decoding

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.formats.base import Rows
    from penstock.formats.files import FileBytes
    from penstock.formats.lines.cut import RowFinder, RowParser
    from penstock.index.model import IndexedShard
    from penstock.types import Columns, Int64Array, Sample


class StoredLines(NamedTuple):
    """Some rows as they are stored, each with whatever ends it."""

    rows: OpenRows
    numbers: Int64Array
    lines: list[bytes]

    def blame(self, parser: RowParser[Any]) -> CorruptShardError | None:
        """Return which of the rows cannot be parsed, and where it is."""
        for row, line in zip(self.numbers.tolist(), self.lines, strict=True):
            try:
                parser.parse([line])
            except BadRow as culprit:
                return self.rows.error(row, culprit)
        return None


class OpenRows:
    """Rows of lines in the bytes of a shard. These stay mapped for as long as it is held."""

    def __init__(self, name: str, data: FileBytes, bounds: npt.NDArray[np.unsignedinteger]) -> None:
        self.name, self._bounds = name, bounds
        self.num_rows = len(bounds) - 1
        self._slices, self._shift = sliceable(data)

    def gather(self, rows: Int64Array) -> StoredLines:
        """Copy rows."""
        begins = self._bounds[rows].astype(np.int64) + self._shift
        ends = self._bounds[rows + 1].astype(np.int64) + self._shift
        data = self._slices
        lines = [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        return StoredLines(self, rows, lines)

    def error(self, row: int, problem: BadRow) -> CorruptShardError:
        """Return an error of one row."""
        return CorruptShardError(f"{self.name}, row {row}: {problem}", shard=self.name, row=row)


class OpenSpan(OpenRows):
    """The rows of a span of a file, which are found when it is opened."""

    def __init__(self, data: FileBytes, info: IndexedShard, finder: RowFinder) -> None:
        span = info.parts[0].span
        self._file = info.name if span is None else span.basename
        details = load_details(info.details, info.name)
        self._first_line = details.line
        self._skip = min(details.skip, len(data))
        self._array: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)[: max(0, len(data) - details.leave)]
        super().__init__(info.name, data, find_rows(self._array, self._skip, finder))
        if self.num_rows != info.num_samples:
            raise CorruptShardError(
                f"{info.name} holds {self.num_rows} rows, but the index says {info.num_samples}: index it again,"
                " or fetch the file again",
                shard=info.name,
            )

    def error(self, row: int, problem: BadRow) -> CorruptShardError:
        """Return an error that names the line of the file in which a row begins."""
        before = self._array[self._skip : int(self._bounds[row])]
        line = self._first_line + int(np.count_nonzero(before == ord("\n")))
        return CorruptShardError(
            f"{self._file}, line {line}: {problem}", shard=self.name, row=row, path=self._file, line=line
        )


class LineReader(MappedReader):
    """One open shard of lines. Rows of several of them that are parsed alike may be parsed together."""

    def __init__(self, parts: Sequence[FileBytes], rows: OpenRows, parser: RowParser[Any]) -> None:
        super().__init__(parts, rows.name, rows.num_rows)
        self._parser = parser
        self._rows: OpenRows | None = rows

    def read(self, rows: Rows) -> list[Sample]:
        """Return the samples at these rows, in this order."""
        parsed = self._parse(rows)
        with decoding:
            return self._parser.samples(parsed)

    def read_columns(self, rows: Rows) -> Columns:
        """Return the same by column: numbers as an array where all values allow it, else a list."""
        parsed = self._parse(rows)
        with decoding:
            return self._parser.columns(parsed)

    def row_layout(self) -> ParsedAlike:
        """Return how its rows are parsed."""
        return ParsedAlike(self._parser)

    def gather_rows(self, rows: Int64Array) -> StoredLines | None:
        """Return rows as they are stored; None: the reader is closed."""
        for part in self._parts:
            check_whole(part, self.name)
        return None if self._rows is None else self._rows.gather(rows)

    def close(self) -> None:
        """Unmap the shard, once no view of its rows is left."""
        self._rows = None  # what points into a mapping keeps it
        super().close()

    def _parse(self, rows: Rows) -> Any:
        stored = self.gather_rows(check_rows(rows, self._num_samples, self.name))
        with decoding:
            return parse_rows(self._parser, [] if stored is None else [stored], [] if stored is None else stored.lines)


@dataclass(frozen=True, slots=True)
class ParsedAlike:
    """Rows that are parsed by equal parsers; they may differ in their columns."""

    parser: RowParser[Any]

    def begin(self, num_rows: int, *, by_column: bool) -> LineGathering:  # noqa: ARG002  however many they are
        """Begin to gather rows of such spans."""
        return LineGathering(self.parser, by_column=by_column)


class LineGathering:
    """Rows of several spans: gathered as they are stored, and parsed together in the order of their places."""

    def __init__(self, parser: RowParser[Any], *, by_column: bool) -> None:
        self._parser, self._by_column = parser, by_column
        self._groups: list[StoredLines] = []
        self._places: list[Int64Array] = []
        self._parsed: Any = None
        self._samples: list[Sample] | None = None

    def add(self, reader: LineReader, rows: Int64Array, places: Int64Array) -> None:
        """Copy some rows of a span."""
        stored = reader.gather_rows(rows)
        if stored is not None:
            self._groups.append(stored)
            self._places.append(places)

    def gather(self) -> None:
        """Do nothing: rows are copied when they are added."""

    def finish(self) -> None:
        """All rows are there: parse them in the order of their places."""
        self._parsed = parse_rows(self._parser, self._groups, in_order(self._lines(), self._places))
        self._groups, self._places = [], []

    def take(self, begin: int, end: int | None) -> Any:
        """Return the samples, or the columns, of all rows from one to another, once all are there."""
        if self._by_column:
            return self._parser.columns(self._parsed, begin, end)
        if self._samples is None:
            self._samples = self._parser.samples(self._parsed)
        return self._samples[begin:end]

    def so_far(self) -> tuple[Int64Array, Any]:
        """Return the places of the rows that were added, and their samples or columns."""
        parsed = parse_rows(self._parser, self._groups, self._lines())
        values = self._parser.columns(parsed) if self._by_column else self._parser.samples(parsed)
        return np.concatenate(self._places), values

    def _lines(self) -> list[bytes]:
        return list(chain.from_iterable(group.lines for group in self._groups))


def parse_rows(parser: RowParser[Any], origins: Sequence[StoredLines], lines: Sequence[bytes]) -> Any:
    """Parse the rows of some spans, in whatever order; a bad one is a `CorruptShardError` that says where it is."""
    try:
        return parser.parse(lines)
    except BadRow as error:
        blamed = (stored.blame(parser) for stored in origins)
        raise next(filter(None, blamed), CorruptShardError(f"rows cannot be read together: {error}")) from error
