"""Orders of episodes, which are shards: frames of so many at hand in random order, one by one or in stretches.

`EpisodePool` cuts the shuffled episodes into pools, and shuffles all samples of a pool. So every sample comes once in
an epoch, no more episodes than a pool has are needed at a time, and the sample at any position is found without those
before it: from the shuffled episodes and the one pool that holds it.

`KeyframeOrder` is the order of video: each stretch of frames that is decoded in one go leaves within a short time,
among many others. Stretches are runs of samples that begin with a keyframe. Episodes are shuffled, and the stretches of
each episode, or of a few, among themselves. What comes of it is cut into as many equal slots as there are episodes in a
pool, which are read side by side: a window takes the next few samples of each slot, and is shuffled. So a slot comes to
its next stretch when it is done with the last one, and needs no frame twice. Any window is found without those before
it: by division, and from the lengths of the shuffled episodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.order.id_spans import IdSpans
from penstock.order.keys import hash_key, permutation
from penstock.order.lanes import Chunk, lane_length, lane_start, read_lanes
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
    """The episodes of one pass in their order, in groups: where each begins among episodes, and among samples."""

    shards: Int64Array
    first_shards: Int64Array
    first_places: Int64Array


class _EpisodeOrder:
    """What both orders know of the episodes of a stream; `window` of them make up a pool."""

    def __init__(self, lengths: Int64Array, *, seed: int, stream: str, num_lanes: int) -> None:
        self._spans = IdSpans(lengths)
        self._lengths = np.asarray(lengths, dtype=np.int64)
        self._filled = np.flatnonzero(self._lengths)
        self.num_samples, self.num_lanes = self._spans.num_samples, num_lanes
        self._seed, self._stream = seed, stream
        self._layouts: LRU[_Layout] = LRU(2)

    def _layout(self, epoch: int, pass_id: int) -> _Layout:
        def lay_out() -> _Layout:
            key = hash_key("episodes", self._seed, self._stream, epoch, pass_id)
            shards = self._filled[permutation(key, len(self._filled))]
            ends = np.concatenate([[0], np.cumsum(self._lengths[shards])])
            first_shards = self._first_shards()
            return _Layout(shards, first_shards, ends[first_shards])

        return self._layouts((epoch, pass_id), lay_out)

    def _first_shards(self) -> Int64Array:
        """Cut the shuffled episodes into groups: where each begins, and where the last one ends."""
        raise NotImplementedError


class EpisodePool(_EpisodeOrder):
    """One stream whose shards are episodes; `window` says how many of them make up a pool."""

    def __init__(self, lengths: Int64Array, *, seed: int, stream: str, num_lanes: int, window: int) -> None:
        super().__init__(lengths, seed=seed, stream=stream, num_lanes=num_lanes)
        self._num_pools = max(1, -(-len(self._filled) // window))
        self._pools: LRU[Int64Array] = LRU(3)

    def ids(self, epoch: int, pass_id: int, positions: range) -> Int64Array:
        """Return the ids at evenly spaced positions of a pass."""
        layout = self._layout(epoch, pass_id)
        wanted = np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
        if not len(wanted):
            return wanted
        pools = np.searchsorted(layout.first_places[:-1], wanted, side="right") - 1
        parts = []
        for pool in range(int(pools[0]), int(pools[-1]) + 1):
            places = wanted[pools == pool] - layout.first_places[pool]
            if len(places):
                parts.append(self._pool(epoch, pass_id, layout, pool)[places])
        return np.concatenate(parts)

    def _first_shards(self) -> Int64Array:
        # Equal pools, so that the last one mixes as well as the others.
        return np.arange(self._num_pools + 1, dtype=np.int64) * len(self._filled) // self._num_pools

    def _pool(self, epoch: int, pass_id: int, layout: _Layout, pool: int) -> Int64Array:
        """Return the ids of a pool in their order."""

        def shuffle() -> Int64Array:
            shards = layout.shards[layout.first_shards[pool] : layout.first_shards[pool + 1]]
            lengths = self._lengths[shards]
            ids = np.repeat(self._spans.starts[shards] - (np.cumsum(lengths) - lengths), lengths)
            ids += np.arange(len(ids), dtype=np.int64)
            return ids[permutation(hash_key("pool", self._seed, self._stream, epoch, pass_id, pool), len(ids))]

        return self._pools((epoch, pass_id, pool), shuffle)


SLICE = 8  # samples of a slot in a window: few, since all pictures of a window are in memory
MOST_SLOTS = 64  # a larger pool has several episodes in each slot


class KeyframeOrder(_EpisodeOrder):
    """One stream whose shards are episodes; `window` says how many of them make up a pool.

    Args:
        lengths: How many samples each episode has.
        seed: Seed of the order.
        stream: The name of the stream.
        num_lanes: How many lanes there are; the slots are divided among them.
        window: How many episodes make up a pool.
        stretches: The ids at which stretches begin, ascending, besides the first of each episode.
    """

    def __init__(
        self,
        lengths: Int64Array,
        *,
        seed: int,
        stream: str,
        num_lanes: int,
        window: int,
        stretches: Int64Array | None = None,
    ) -> None:
        super().__init__(lengths, seed=seed, stream=stream, num_lanes=num_lanes)
        self._stretches = np.zeros(0, np.int64) if stretches is None else stretches
        self._slots = max(1, min(window, MOST_SLOTS) // num_lanes)  # of each lane
        self._group = max(1, window // (self._slots * num_lanes))  # episodes that are shuffled together
        self._groups: LRU[Int64Array] = LRU(3 * self._slots * num_lanes)
        self._windows: LRU[Int64Array] = LRU(2 * num_lanes)

    def ids(self, epoch: int, pass_id: int, positions: range) -> Int64Array:
        """Return the ids at evenly spaced positions of a pass."""
        layout = self._layout(epoch, pass_id)

        def chunk_at(lane: int, place: int) -> Chunk:
            # The shorter slots of a lane have so many samples, the others one more.
            slot_length = lane_length(self.num_samples, self.num_lanes, lane) // self._slots
            window = min(place // (self._slots * SLICE), slot_length // SLICE)
            ids = self._windows(
                (epoch, pass_id, lane, window), lambda: self._shuffle(layout, epoch, pass_id, lane, window)
            )
            return window * self._slots * SLICE, ids

        return read_lanes(positions, self.num_lanes, chunk_at)

    def _first_shards(self) -> Int64Array:
        count = len(self._filled)
        return np.append(np.arange(0, count, self._group, dtype=np.int64), count)

    def _shuffle(self, layout: _Layout, epoch: int, pass_id: int, lane: int, window: int) -> Int64Array:
        """Return the ids of a window in their order."""
        begin = lane_start(self.num_samples, self.num_lanes, lane)
        length = lane_length(self.num_samples, self.num_lanes, lane)
        cuts = begin + np.arange(self._slots + 1, dtype=np.int64) * length // self._slots
        firsts = np.minimum(cuts[:-1] + window * SLICE, cuts[1:])
        ends = np.minimum(firsts + SLICE, cuts[1:])
        parts = [
            part
            for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)
            for part in self._places(layout, epoch, pass_id, first, end)
        ]
        ids = np.concatenate(parts)
        return ids[permutation(hash_key("window", self._seed, self._stream, epoch, pass_id, lane, window), len(ids))]

    def _places(self, layout: _Layout, epoch: int, pass_id: int, first: int, end: int) -> list[Int64Array]:
        """Return the ids at some places in a row, before they are shuffled."""
        parts = []
        group = int(np.searchsorted(layout.first_places, first, side="right")) - 1
        while first < end:
            begin, stop = layout.first_places[group : group + 2].tolist()
            parts.append(self._ids_of_group(layout, epoch, pass_id, group)[first - begin : end - begin])
            first, group = stop, group + 1
        return parts

    def _ids_of_group(self, layout: _Layout, epoch: int, pass_id: int, group: int) -> Int64Array:
        def shuffle() -> Int64Array:
            shards = np.sort(layout.shards[layout.first_shards[group] : layout.first_shards[group + 1]])
            starts, ends = self._spans.starts[shards], self._spans.starts[shards + 1]
            # An episode begins a stretch, whether that is listed or not.
            cuts = np.searchsorted(self._stretches, [starts + 1, ends]).T.tolist()
            firsts = [np.append(start, self._stretches[a:b]) for start, (a, b) in zip(starts, cuts, strict=True)]
            begins = np.concatenate(firsts)
            stops = np.concatenate([np.append(each[1:], end) for each, end in zip(firsts, ends, strict=True)])
            order = permutation(hash_key("stretches", self._seed, self._stream, epoch, pass_id, group), len(begins))
            begins, lengths = begins[order], (stops - begins)[order]
            return np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))

        return self._groups((epoch, pass_id, group), shuffle)
