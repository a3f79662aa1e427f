"""A few rows of a shard that is far away: only their bytes are fetched, not the shard."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import CorruptShardError
from penstock.formats.base import get_format
from penstock.reading.asking import ask_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.formats.base import RowRanges, ShardReader
    from penstock.index.model import ShardInfo
    from penstock.reading.shard_table import ShardTable
    from penstock.types import Int64Array, Place, Span

# Past this part of its rows, or this many of them, a shard is worth fetching whole.
_MAX_PART = 1 / 8
_MAX_ROWS = 64


class RangedRows:
    """Reads rows by ranges for as long as that is less than fetching their shards."""

    def __init__(self, table: ShardTable) -> None:
        self._table = table
        self._num_read: dict[int, int] = {}

    def is_worth_it(self, shard: int, num_rows: int) -> bool:
        """Tell whether rows of a shard should be read by ranges: it is absent, stored raw, and hardly used so far."""
        stream, number, info = self._table.find(shard)
        place = self._table.places[stream]
        if place.cached is None or place.in_place is not None:
            return False
        part = info.parts[0]
        if part.packed is not None or part.span is not None or place.validates:
            return False
        if get_format(info.layout.format).row_ranges is None:
            return False
        num_read = self._num_read.get(shard, 0) + num_rows
        if num_read > min(_MAX_ROWS, max(1, int(info.num_samples * _MAX_PART))):
            return False
        return not self._table.cache.is_present(place.cached, number)

    def open(self, wanted: Sequence[tuple[int, Int64Array]]) -> list[ShardReader]:
        """Fetch rows of several shards at the same time, and give for each a reader of these rows alone, in order."""
        asked = [self._request(shard, rows) for shard, rows in wanted]
        located = self._read([(ask, ask.ranges.spans_to_locate(ask.info, ask.rows)) for ask in asked])
        spans = [ask.ranges.spans_of_rows(ask.info, ask.rows, found) for ask, found in zip(asked, located, strict=True)]
        pieces = self._read(list(zip(asked, spans, strict=True)))
        options = self._table.options
        return [ask.ranges.open(ask.info, found, options) for ask, found in zip(asked, pieces, strict=True)]

    def _request(self, shard: int, rows: Int64Array) -> _Request:
        stream, number, info = self._table.find(shard)
        cached, ranges = self._table.places[stream].cached, get_format(info.layout.format).row_ranges
        if cached is None or ranges is None:
            raise CorruptShardError(f"{info.name} is not in a store, or cannot be read by ranges", shard=info.name)
        self._num_read[shard] = self._num_read.get(shard, 0) + len(rows)
        return _Request(cached, number, info, rows, ranges)

    def _read(self, wanted: Sequence[tuple[_Request, list[Span]]]) -> list[list[bytes]]:
        """Read ranges of many objects at once: one question for each stream."""
        cache = self._table.cache
        places: dict[int, list[Place]] = {}
        shards: dict[int, dict[str, int]] = {}
        for ask, spans in wanted:
            places.setdefault(ask.stream, []).extend((ask.key, span) for span in spans)
            shards.setdefault(ask.stream, {})[ask.key] = ask.shard
        if len(places) == 1:
            found = {stream: iter(cache.read_many(stream, each, shards[stream])) for stream, each in places.items()}
        else:
            asked = [partial(cache.read_many, stream, each, shards[stream]) for stream, each in places.items()]
            found = {stream: iter(answer) for stream, answer in zip(places, ask_all(asked), strict=True)}
        return [[next(found[ask.stream]) for _ in spans] for ask, spans in wanted]


@dataclass(frozen=True, slots=True)
class _Request:
    """Some rows of a shard of a stream."""

    stream: int
    shard: int
    info: ShardInfo
    rows: Int64Array
    ranges: RowRanges

    @property
    def key(self) -> str:
        return self.info.parts[0].raw.basename
