"""A few rows of a shard that is far away: only their bytes are fetched, not the shard."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.errors import CorruptShardError
from penstock.formats.base import get_format
from penstock.formats.offsets import table_bytes, write_offsets
from penstock.reading.asking import ask_all
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.cache.cache import Cache
    from penstock.formats.base import ReadOptions, ShardReader
    from penstock.index.model import ShardInfo
    from penstock.types import Int64Array, Place

# Past this part of its rows, or this many of them, a shard is worth fetching whole.
_MAX_PART = 1 / 8
_MAX_ROWS = 64
# Asking for one place costs about as much as so many bytes.
_TABLE_BYTES_PER_ROW = 256 << 10


class FetchedShard(NamedTuple):
    """A shard in a store: the number of its stream in the cache, its own there, and what the index says of it."""

    stream: int
    number: int
    info: ShardInfo


class RangedRows:
    """Reads rows by ranges for as long as that is less than fetching their shards.

    `find` gives a shard that may be read so, or None.
    """

    def __init__(self, cache: Cache, options: ReadOptions, find: Callable[[int], FetchedShard | None]) -> None:
        self._cache, self._options, self._find = cache, options, find
        self._num_read: dict[int, int] = {}

    def is_worth_it(self, shard: int, num_rows: int) -> bool:
        """Tell whether rows of a shard should be read by ranges: it is absent, stored raw, and hardly used so far."""
        found = self._find(shard)
        if found is None or found.info.layout.format != "mds" or found.info.parts[0].packed is not None:
            return False
        num_read = self._num_read.get(shard, 0) + num_rows
        if num_read > min(_MAX_ROWS, max(1, int(found.info.num_samples * _MAX_PART))):
            return False
        return not self._cache.is_present(found.stream, found.number)

    def open(self, wanted: Sequence[tuple[int, Int64Array]]) -> list[ShardReader]:
        """Fetch rows of several shards at the same time, and give for each a reader of these rows alone, in order."""
        asked = [self._ask(shard, rows) for shard, rows in wanted]
        tables = self._read([(ask, ask.table_spans()) for ask in asked])
        bounds = [ask.bounds(table) for ask, table in zip(asked, tables, strict=True)]
        spans = [[Span(begin, end) for begin, end in each.tolist()] for each in bounds]
        found = self._read(list(zip(asked, spans, strict=True)))
        return [_reader_of(ask.info, pieces, self._options) for ask, pieces in zip(asked, found, strict=True)]

    def _ask(self, shard: int, rows: Int64Array) -> _Ask:
        found = self._find(shard)
        if found is None:
            raise CorruptShardError(f"shard {shard} is not in a store", shard=str(shard))
        self._num_read[shard] = self._num_read.get(shard, 0) + len(rows)
        return _Ask(found.stream, found.number, found.info, rows)

    def _read(self, wanted: Sequence[tuple[_Ask, list[Span]]]) -> list[list[bytes]]:
        """Read ranges of many objects at once: one question for each stream."""
        cache = self._cache
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
class _Ask:
    """Some rows of a shard of a stream."""

    stream: int
    shard: int
    info: ShardInfo
    rows: Int64Array

    @property
    def key(self) -> str:
        return self.info.parts[0].raw.basename

    @property
    def _takes_whole_table(self) -> bool:
        return table_bytes(self.info.num_samples) <= _TABLE_BYTES_PER_ROW * (len(self.rows) - 1)

    def table_spans(self) -> list[Span]:
        """Say what to read of the table of offsets: all of it, if that is little for so many rows, or their places."""
        if self._takes_whole_table:
            return [Span(4, table_bytes(self.info.num_samples))]
        return [Span(4 + 4 * row, 12 + 4 * row) for row in self.rows.tolist()]

    def bounds(self, table: list[bytes]) -> Int64Array:
        """Say from what was read where each row begins and ends."""
        words = np.frombuffer(b"".join(table), dtype="<u4").astype(np.int64)
        if self._takes_whole_table:
            bounds = np.stack([words[self.rows], words[self.rows + 1]], axis=1)
        else:
            bounds = words.reshape(-1, 2)
        self._check(bounds)
        return bounds

    def _check(self, bounds: Int64Array) -> None:
        info = self.info
        is_wrong = (
            (bounds[:, 0] > bounds[:, 1])
            | (bounds[:, 0] < table_bytes(info.num_samples))
            | (bounds[:, 1] > info.parts[0].raw.num_bytes)
        )
        if is_wrong.any():
            row = int(self.rows[int(np.argmax(is_wrong))])
            raise CorruptShardError(
                f"{info.name}, row {row}: its offsets lie outside of the shard", shard=info.name, row=row
            )


def _reader_of(info: ShardInfo, pieces: list[bytes], options: ReadOptions) -> ShardReader:
    """Make a shard of some rows alone, which the format reads as it reads any other."""
    ends = np.cumsum([len(piece) for piece in pieces])
    data = write_offsets(ends, table_bytes(len(pieces))) + b"".join(pieces)
    return get_format("mds").open([data], replace(info, num_samples=len(pieces)), options)
