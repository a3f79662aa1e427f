"""Rows of several shards that are parsed alike: gathered as they are stored, and parsed together."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import numpy as np

from penstock.formats.gather import in_order
from penstock.formats.lines.reader import parse_rows

if TYPE_CHECKING:
    from penstock.formats.base import ShardReader
    from penstock.formats.lines.reader import RowParser, StoredLines
    from penstock.types import Columns, Int64Array, Sample


class GathersRows(Protocol):
    """A shard reader that gives rows as they are stored, and says how to parse them."""

    parser: RowParser[Any]

    def gather_rows(self, rows: Int64Array) -> StoredLines | None:
        """Copy rows; None: the reader is closed."""
        ...


def gathers_rows(reader: ShardReader) -> TypeGuard[GathersRows]:
    """Tell whether a reader gives rows as they are stored."""
    return hasattr(reader, "gather_rows")


class RowGathering:
    """Rows of shard after shard, which may differ in their columns."""

    def __init__(self, parser: RowParser[Any]) -> None:
        self._parser = parser
        self._groups: list[StoredLines] = []
        self._places: list[Int64Array] = []
        self._parsed: Any = None
        self._samples: list[Sample] | None = None

    def takes(self, reader: ShardReader) -> bool:
        """Tell whether the rows of a shard are parsed like those before."""
        return gathers_rows(reader) and reader.parser == self._parser

    def add(self, reader: ShardReader, rows: Int64Array, places: Int64Array) -> None:
        """Take some rows of a shard that `takes` accepts."""
        stored = reader.gather_rows(rows) if gathers_rows(reader) else None
        if stored is not None:
            self._groups.append(stored)
            self._places.append(places)

    def finish(self) -> None:
        """All rows are there: parse them in the order of their places."""
        self._parsed = parse_rows(self._parser, self._groups, in_order(self._lines(), self._places))
        self._groups, self._places = [], []

    def gather(self) -> None:
        """Rows are copied when they are added."""

    def samples(self, begin: int = 0, end: int | None = None) -> list[Sample]:
        """Give the samples of all rows from one to another, once all are there."""
        if self._samples is None:
            self._samples = self._parser.samples(self._parsed)
        return self._samples[begin:end]

    def columns(self, begin: int = 0, end: int | None = None) -> Columns:
        """Give the columns of all rows from one to another, once all are there."""
        return self._parser.columns(self._parsed, begin, end)

    def samples_so_far(self) -> tuple[Int64Array, list[Sample]]:
        """Give the samples that were added, and their places."""
        return np.concatenate(self._places), self._parser.samples(self._parse_so_far())

    def columns_so_far(self) -> tuple[Int64Array, Columns]:
        """Give the columns of the rows that were added, and their places."""
        return np.concatenate(self._places), self._parser.columns(self._parse_so_far())

    def _parse_so_far(self) -> Any:
        return parse_rows(self._parser, self._groups, self._lines())

    def _lines(self) -> list[bytes]:
        return list(chain.from_iterable(group.lines for group in self._groups))
