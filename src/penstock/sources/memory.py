"""A source of samples that are in memory already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.sources.base import ShardedSource
from penstock.sources.shard_info import ShardInfo
from penstock.units import check_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.types import Sample

_CHUNK = 1024


class MemoryShardedSource(ShardedSource):
    """A list of samples, cut into shards of the same size. For tests, small datasets, and what you computed yourself.

    You get shallow copies, so changing a sample does not change the list.

    Args:
        samples: The samples, or anything that gives one for each number, such as a range of your own.
        num_shards: How many shards to cut them into.
        name: What the names of the shards begin with.
        fingerprint: A word that changes whenever the samples change, if results are to be cached.
    """

    makes_new_samples = True

    def __init__(
        self, samples: Sequence[Sample], *, num_shards: int = 1, name: str = "memory", fingerprint: str | None = None
    ) -> None:
        check_whole("num_shards", num_shards, 1)
        self._samples = samples
        self._bounds = [number * len(samples) // num_shards for number in range(num_shards + 1)]
        self._names = [f"{name}:{number}" for number in range(num_shards)]
        self._fingerprint = fingerprint

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards."""
        return self._names

    @property
    def order_fingerprint(self) -> str | None:
        """The word that was given for the samples, with how they are cut."""
        return None if self._fingerprint is None else f"memory-{self._fingerprint}-{len(self._names)}"

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return the number of rows of a shard."""
        number = self.shard_number(shard_name)
        return ShardInfo(number, shard_name, self._bounds[number + 1] - self._bounds[number])

    @property
    def has_random_rows(self) -> bool:
        """They are all here."""
        return True

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:
        """Return the samples at these rows of a shard, in this order."""
        first = self._bounds[self.shard_number(shard_name)]
        return [dict(self._samples[first + int(row)]) for row in rows]

    def _read_chunks(self, shard_name: str, row: int) -> Iterator[list[Sample]]:
        number = self.shard_number(shard_name)
        stop = self._bounds[number + 1]
        for begin in range(self._bounds[number] + row, stop, _CHUNK):
            yield [dict(self._samples[place]) for place in range(begin, min(begin + _CHUNK, stop))]
