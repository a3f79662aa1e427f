"""Streams of several sources laid end to end as one source."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.reading.source import (
    FollowsSamples,
    SharesSpace,
    Source,
    fetched_by,
    portion_bytes,
    row_reader_of,
    samples_ahead,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.cache.shares import ShareListener
    from penstock.formats.base import ShardReader
    from penstock.reading.source import OpenShard, RowReader
    from penstock.types import Int64Array


class ShardRange(NamedTuple):
    """Some shards of a source in a row: those of one stream."""

    source: Source
    first_shard: int
    num_shards: int

    @property
    def shards(self) -> slice:
        """Their numbers in the source."""
        return slice(self.first_shard, self.first_shard + self.num_shards)

    @property
    def lengths(self) -> Int64Array:
        """The samples of each."""
        return np.diff(self.source.spans.starts)[self.shards]


class JoinedSources(Source):
    """Numbers the shards of all ranges in their order."""

    def __init__(self, ranges: Sequence[ShardRange]) -> None:
        self._ranges = tuple(ranges)
        self._starts = np.cumsum([0, *(part.num_shards for part in ranges)])
        super().__init__(np.concatenate([part.lengths for part in ranges]))
        self._sources = list({id(part.source): part.source for part in ranges}.values())

    def open(self, shard: int) -> OpenShard:
        """Open a shard of the source that it belongs to."""
        source, number = self.find(shard)
        return source.open(number)

    @property
    def sizes(self) -> Int64Array:
        """The bytes of each shard."""
        return np.concatenate([part.source.sizes[part.shards] for part in self._ranges])

    @property
    def portion_bytes(self) -> int:
        """What all of them can do with."""
        return min(portion_bytes(part.source) for part in self._ranges)

    @property
    def is_fetched(self) -> bool:
        """Whether any source fetches its shards."""
        return any(map(fetched_by, self._sources))

    def expect(self, shards: Int64Array, batches_ahead: Int64Array) -> None:
        """Tell each source what is expected of it, which may be nothing."""
        for source in self._sources:
            fetched = fetched_by(source)
            if fetched is not None:
                at, numbers = self.numbers_in(source, shards)
                fetched.expect(numbers, batches_ahead[at])

    @property
    def samples_ahead(self) -> int:
        """As many as any source wants to know of."""
        return max(map(samples_ahead, self._sources))

    def announce(self, ids: Int64Array, *, is_first: bool) -> None:
        """Tell each source of its own samples."""
        shards, rows = self.spans.locate(ids)
        for source in self._sources:
            if isinstance(source, FollowsSamples) and source.samples_ahead:
                at, numbers = self.numbers_in(source, shards)
                source.announce(source.spans.starts[numbers] + rows[at], is_first=is_first)

    def row_reader(self) -> RowReader | None:
        """Give what reads rows of the sources that can."""
        readers = {id(source): row_reader_of(source) for source in self._sources}
        return _JoinedRows(self, readers) if any(readers.values()) else None

    def share_limit(self, holder: ShareListener) -> None:
        """Let every source limit the holder."""
        for source in self._sources:
            if isinstance(source, SharesSpace):
                source.share_limit(holder)

    def describe_shard(self, shard: int) -> str:
        """Say where a shard is."""
        source, number = self.find(shard)
        return source.describe_shard(number)

    def close(self) -> None:
        """Close all sources."""
        for source in self._sources:
            source.close()

    def find(self, shard: int) -> tuple[Source, int]:
        """Give the source of a shard and its number there."""
        number = int(self._starts.searchsorted(shard, side="right")) - 1
        part = self._ranges[number]
        return part.source, shard - int(self._starts[number]) + part.first_shard

    def numbers_in(self, source: Source, shards: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Of some shards, say which belong to a source, by their places in the list, and what number each has there."""
        owners = self._starts.searchsorted(shards, side="right") - 1
        is_in = np.array([part.source is source for part in self._ranges])
        shifts = np.array([part.first_shard for part in self._ranges]) - self._starts[:-1]
        (at,) = np.nonzero(is_in[owners])
        return at, shards[at] + shifts[owners[at]]


class _JoinedRows:
    def __init__(self, joined: JoinedSources, readers: dict[int, RowReader | None]) -> None:
        self._joined, self._readers = joined, readers

    def is_worth_it(self, shard: int, num_rows: int, cost_bytes: float) -> bool:
        source, number = self._joined.find(shard)
        reader = self._readers[id(source)]
        return reader is not None and reader.is_worth_it(number, num_rows, cost_bytes)

    def open(self, wanted: Sequence[tuple[int, Int64Array]], meanwhile: Callable[[], None]) -> list[ShardReader]:
        asked: dict[int, list[tuple[int, Int64Array]]] = {}
        owners = []
        for shard, rows in wanted:
            source, number = self._joined.find(shard)
            owners.append(id(source))
            asked.setdefault(id(source), []).append((number, rows))
        opened = {}
        for number, (owner, each) in enumerate(asked.items(), start=1):
            reader, then = self._readers[owner], meanwhile if number == len(asked) else lambda: None
            opened[owner] = iter(reader.open(each, then) if reader is not None else ())
        return [next(opened[owner]) for owner in owners]
