"""The order of an episode pool: so many whole shards at hand, their samples in uniformly random order.

Shards are shuffled, and cut into pools of equal numbers of them. Within a pool all samples are shuffled together. So
every sample comes once in an epoch, no more shards than a pool has are needed at a time, and the sample at any position
is found without those before it: from the shuffled shards and the one pool that holds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.order.id_spans import IdSpans
from penstock.order.keys import hash_key, permutation
from penstock.order.lru import LRU

if TYPE_CHECKING:
    from penstock.types import Int64Array


def pool_size(sizes: Int64Array, most_shards: int, most_bytes: int | None) -> int:
    """Return how many shards a pool may have, so that no choice of so many exceeds the bytes; at least one."""
    if most_bytes is None:
        return most_shards
    largest_first = np.cumsum(np.sort(sizes)[::-1])
    return max(1, min(most_shards, int(np.searchsorted(largest_first, most_bytes, side="right"))))


class _Layout(NamedTuple):
    """The pools of one pass: all shards in their order, and where each pool begins among shards and positions."""

    shards: Int64Array
    first_shards: Int64Array
    first_positions: Int64Array


class EpisodePool:
    """One stream whose shards are episodes; `window` says how many of them make up a pool."""

    def __init__(self, lengths: Int64Array, *, seed: int, stream: str, num_lanes: int, window: int) -> None:
        self._spans = IdSpans(lengths)
        self._lengths = np.asarray(lengths, dtype=np.int64)
        self._filled = np.flatnonzero(self._lengths)
        self.num_samples, self.num_lanes = self._spans.num_samples, num_lanes
        self._num_pools = max(1, -(-len(self._filled) // window))
        self._seed, self._stream = seed, stream
        self._layouts: LRU[_Layout] = LRU(2)
        self._pools: LRU[Int64Array] = LRU(3)

    def ids(self, epoch: int, pass_id: int, positions: range) -> Int64Array:
        """Return the ids at evenly spaced positions of a pass."""
        layout = self._layouts((epoch, pass_id), lambda: self._lay_out(epoch, pass_id))
        wanted = np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
        if not len(wanted):
            return wanted
        pools = np.searchsorted(layout.first_positions, wanted, side="right") - 1
        parts = []
        for pool in range(int(pools[0]), int(pools[-1]) + 1):
            places = wanted[pools == pool] - layout.first_positions[pool]
            if len(places):
                parts.append(self._pool(epoch, pass_id, layout, pool)[places])
        return np.concatenate(parts)

    def _lay_out(self, epoch: int, pass_id: int) -> _Layout:
        count = len(self._filled)
        key = hash_key("episodes", self._seed, self._stream, epoch, pass_id)
        shards = self._filled[permutation(key, count)]
        # Equal pools, so that the last one mixes as well as the others.
        first_shards = np.arange(self._num_pools + 1, dtype=np.int64) * count // self._num_pools
        ends = np.concatenate([[0], np.cumsum(self._lengths[shards])])
        return _Layout(shards, first_shards, ends[first_shards[:-1]])

    def _pool(self, epoch: int, pass_id: int, layout: _Layout, pool: int) -> Int64Array:
        """Return the ids of a pool in their order."""

        def shuffle() -> Int64Array:
            shards = layout.shards[layout.first_shards[pool] : layout.first_shards[pool + 1]]
            lengths = self._lengths[shards]
            ids = np.repeat(self._spans.starts[shards] - (np.cumsum(lengths) - lengths), lengths)
            ids += np.arange(len(ids), dtype=np.int64)
            return ids[permutation(hash_key("pool", self._seed, self._stream, epoch, pass_id, pool), len(ids))]

        return self._pools((epoch, pass_id, pool), shuffle)
