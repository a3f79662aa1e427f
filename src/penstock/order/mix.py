"""Mixing in closed form: which stream is at a position of a segment, and which of its samples.

A segment is a run of positions with fixed counts of each stream. It is cut in blocks of whole rows, a row
being one position in each lane. How many samples of a stream a lane has given before a row is a difference
of two rounded multiples of its share; the lanes round at evenly staggered thresholds, so that whole rows
are exact to one sample without any lane knowing of another. Streams with less than one sample per lane and
block are small and share some slots of it. Within its block a lane is shuffled, so nobody sees one stream only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from penstock.order.keys import hash_key, permutation, sort_groups
from penstock.order.lanes import lane_length
from penstock.order.lru import LRU
from penstock.order.small_streams import SmallStreams, group_equals, rank_among_equals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.types import Int64Array

# Rows of a lane that are mixed in one go, in as many blocks as they hold: numpy's cost per call is paid once.
ROWS_AT_ONCE = 1 << 12


class MixedStream(NamedTuple):
    """What a stream has in a run of rows: at which of them its samples are, rising, and their indexes in the stream.

    For a stream with lanes the index counts the samples that this lane has taken in the segment; for a
    small stream, all that the segment has taken.
    """

    stream: int
    rows: Int64Array  # counted from the first of the run
    indexes: range | Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """A run of rows of one lane, by the streams that they belong to."""

    first_row: int
    num_rows: int
    parts: tuple[MixedStream, ...]


class Mixer:
    """The mix of one segment: `counts[i]` samples of stream i, over lanes, in blocks of `block_rows` rows."""

    def __init__(
        self, counts: Sequence[int], *, num_lanes: int, block_rows: int, key: int, is_shuffled: bool = True
    ) -> None:
        self.counts = np.array(counts, dtype=np.int64)
        self.size: int = sum(counts)
        self.num_lanes, self.block_rows = num_lanes, block_rows
        self._key, self._is_shuffled = key, is_shuffled
        self.is_small = self.counts * block_rows < self.size
        self.num_blocks = self.size // (block_rows * num_lanes)
        self._small_numbers, self._laned = np.flatnonzero(self.is_small), np.flatnonzero(~self.is_small)
        small_counts = [counts[int(stream)] for stream in self._small_numbers]
        # Bounds of the streams laid end to end: first the small ones, then one stream after the other, in exact
        # integers.
        self._bounds: list[int] = [sum(small_counts)]
        for stream in self._laned:
            self._bounds.append(self._bounds[-1] + counts[int(stream)])
        self._small = (
            SmallStreams(small_counts, self.num_blocks, self._small_slots_before, hash_key(key, "pool"))
            if len(self._small_numbers)
            else None
        )
        self._blocks_at_once = max(1, ROWS_AT_ONCE // block_rows)
        self._mixed: LRU[Mixed] = LRU(num_lanes + 1)
        self._tails: LRU[list[Mixed]] = LRU(1)
        self._kept_shares: LRU[tuple[Int64Array, Int64Array]] = LRU(4)

    def rows(self, lane: int, row: int) -> Mixed:
        """Return a run of blocks of a lane that holds a row, or what is left after the last whole block."""
        block = self.first_block(row)
        if block == self.num_blocks:
            return self._tails("tail", self._mix_tail)[lane]
        num_blocks = min(self._blocks_at_once, self.num_blocks - block)
        return self._mixed((lane, block), lambda: self._mix_blocks(lane, block, num_blocks))

    def first_block(self, row: int) -> int:
        """Return the first block of the run that `rows` gives for a row."""
        block = row // self.block_rows
        return min(block - block % self._blocks_at_once if block < self.num_blocks else block, self.num_blocks)

    def taken(self, block: int) -> tuple[Int64Array, Int64Array]:
        """Count the samples taken before a block: [stream][lane] with lanes, [stream] for small ones."""
        by_lane = np.zeros((len(self.counts), self.num_lanes), dtype=np.int64)
        below = [self._below(bound, block * self.block_rows) for bound in self._bounds]
        for number, stream in enumerate(self._laned):
            by_lane[stream] = below[number + 1] - below[number]
        small = np.zeros(len(self.counts), dtype=np.int64)
        if self._small is not None:
            small[self._small_numbers] = self._small.dealt(block)
        return by_lane, small

    def totals(self) -> tuple[Int64Array, Int64Array]:
        """Count the samples of the whole segment, in the two ways of `taken`, without mixing the tail."""
        by_lane, small = self.taken(self.num_blocks)
        left = self.counts - by_lane.sum(axis=1) - small
        ends = np.cumsum(left)[:, None]
        lanes = np.arange(self.num_lanes, dtype=np.int64)
        # Streams lie end to end over the positions of the tail, which belong to the lanes in turn.
        below = (ends - lanes + self.num_lanes - 1) // self.num_lanes
        before = (ends - left[:, None] - lanes + self.num_lanes - 1) // self.num_lanes
        in_tail = np.where(self.is_small[:, None], 0, below - before)
        return by_lane + in_tail, np.where(self.is_small, self.counts, 0)

    def taken_at(self, position: int) -> tuple[Int64Array, Int64Array]:
        """Count the samples taken before any position, in the two ways of `taken`."""
        if position >= self.size:
            return self.totals()
        block = min(position // (self.block_rows * self.num_lanes), self.num_blocks)
        by_lane, small = self.taken(block)
        for lane in range(self.num_lanes):
            num_rows = lane_length(position, self.num_lanes, lane) - block * self.block_rows
            if num_rows > 0:
                mixed = self.rows(lane, block * self.block_rows)
                skipped = block * self.block_rows - mixed.first_row
                for stream, rows, _ in mixed.parts:
                    before, after = np.searchsorted(rows, (skipped, skipped + num_rows)).tolist()
                    if self.is_small[stream]:
                        small[stream] += after - before
                    else:
                        by_lane[stream, lane] += after - before
        return by_lane, small

    def _below(self, bound: int, row: int) -> Int64Array:
        """Count, for each lane, its samples below a bound before a row: row · bound / size, rounded."""
        whole, rest = divmod(row * bound, self.size)
        lanes = np.arange(self.num_lanes, dtype=np.int64)
        # The sum over lanes is the rounded total: floor(x) + floor(x + 1/L) + … = floor(L·x).
        below: Int64Array = whole + (rest * self.num_lanes // self.size + lanes >= self.num_lanes)
        return below

    def _small_slots_before(self, block: int) -> int:
        return block * self.block_rows * self.num_lanes * self._bounds[0] // self.size

    def _mix_blocks(self, lane: int, block: int, num_blocks: int) -> Mixed:
        """Mix some blocks of a lane in a row, each within itself."""
        row, num_rows = block * self.block_rows, num_blocks * self.block_rows
        parts: list[MixedStream] = []
        laned_rows: Int64Array | None = None  # all of them
        if self._small is not None:
            small_rows, slots = self._small_slots(lane, block, num_blocks)
            numbers, small_indexes = self._small.blocks(block, num_blocks)
            slots -= self._small_slots_before(block)
            streams = self._small_numbers[numbers[slots]]
            parts += _by_stream(streams, small_rows, small_indexes[slots])
            is_laned = np.ones(num_rows, dtype=bool)
            is_laned[small_rows] = False
            laned_rows = np.flatnonzero(is_laned)
        floors, staggered = self._shares("blocks", block, num_blocks)
        below = floors + (staggered + lane >= self.num_lanes)
        taken = below[1:] - below[:-1]  # [stream][block], and one more: what comes after the last
        counts = np.diff(taken, axis=1).T
        labels = np.repeat(np.tile(np.arange(len(self._laned)), num_blocks), counts.ravel())
        if self._is_shuffled:
            labels = labels[self._shuffle(lane, block, counts.sum(axis=1))]
        for label, places in group_equals(labels):
            rows = places if laned_rows is None else laned_rows[places]
            first = int(taken[label, 0])
            parts.append(MixedStream(int(self._laned[label]), rows, range(first, first + len(rows))))
        return Mixed(first_row=row, num_rows=num_rows, parts=tuple(parts))

    def _shares(self, of: Literal["blocks", "small"], block: int, num_blocks: int) -> tuple[Int64Array, Int64Array]:
        """Return what `_ahead` does for all bounds where blocks begin, or of the small streams row by row.

        It is the same for every lane, and kept for the lanes to come: all but the stagger of its thresholds.
        """
        row = block * self.block_rows

        def compute() -> tuple[Int64Array, Int64Array]:
            if of == "small":
                return self._ahead(self._bounds[0], row, num_blocks * self.block_rows, 1)
            pairs = [self._ahead(bound, row, num_blocks, self.block_rows) for bound in self._bounds]
            return np.stack([floors for floors, _ in pairs]), np.stack([staggered for _, staggered in pairs])

        return self._kept_shares((of, block), compute)

    def _ahead(self, bound: int, row: int, num_steps: int, step: int) -> tuple[Int64Array, Int64Array]:
        """Return row · bound / size for evenly spaced rows: the whole part, and the rest in parts of a lane."""
        # Counted from the first row, products fit in 64 bits whatever the size.
        whole, rest = divmod(row * bound, self.size)
        ahead = rest + np.arange(num_steps + 1, dtype=np.int64) * (step * bound)
        floors, rests = np.divmod(ahead, self.size)
        return whole + floors, rests * self.num_lanes // self.size

    def _shuffle(self, lane: int, block: int, sizes: Int64Array) -> Int64Array:
        if self.block_rows <= ROWS_AT_ONCE:
            return sort_groups(hash_key("mix", self._key, lane), block, sizes)
        return permutation(hash_key("mix", self._key, lane, block), int(sizes[0]))

    def _small_slots(self, lane: int, block: int, num_blocks: int) -> tuple[Int64Array, Int64Array]:
        """Find the rows where a lane has a slot of small streams, and number these slots over all lanes."""
        num_lanes = self.num_lanes
        floors, staggered = self._shares("small", block, num_blocks)
        in_lane = floors + (staggered + lane >= num_lanes)
        rows = np.flatnonzero(in_lane[1:] != in_lane[:-1])
        before, after = (
            lane * floors[at] + np.maximum(0, lane - num_lanes + staggered[at])  # in the lanes before this one
            for at in (rows, rows + 1)
        )
        return rows, num_lanes * floors[rows] + staggered[rows] + after - before

    def _mix_tail(self) -> list[Mixed]:
        """Mix what is left after the last whole block: streams end to end, then each lane shuffled."""
        by_lane, small = self.taken(self.num_blocks)
        left = self.counts - by_lane.sum(axis=1) - small
        labels = np.repeat(np.arange(len(self.counts)), left)
        lanes = []
        for lane in range(self.num_lanes):
            in_lane = labels[lane :: self.num_lanes]
            if self._is_shuffled:
                in_lane = in_lane[permutation(hash_key("tail", self._key, lane), len(in_lane))]
            labels[lane :: self.num_lanes] = in_lane
            lanes.append(by_lane[in_lane, lane] + rank_among_equals(in_lane))
        over_all = small[labels] + rank_among_equals(labels)
        mixed = []
        for lane, in_lane in enumerate(lanes):
            streams = labels[lane :: self.num_lanes]
            indexes = np.where(self.is_small[streams], over_all[lane :: self.num_lanes], in_lane)
            parts = tuple(_by_stream(streams, np.arange(len(streams)), indexes))
            mixed.append(Mixed(first_row=self.num_blocks * self.block_rows, num_rows=len(streams), parts=parts))
        return mixed


def _by_stream(streams: Int64Array, rows: Int64Array, indexes: Int64Array) -> Iterator[MixedStream]:
    """Sort rows, given with their streams and indexes, by stream."""
    for stream, places in group_equals(streams):
        yield MixedStream(stream, rows[places], indexes[places])
