"""Mixing in closed form: which stream is at a position of a segment, and which of its samples.

A segment is a run of positions with fixed counts of each stream. It is cut in blocks of whole rows, a row
being one position in each lane. How many samples of a stream a lane has given before a row is a difference
of two rounded multiples of its share; the lanes round at evenly staggered thresholds, so that whole rows
are exact to one sample without any lane knowing of another. Within its block a lane is shuffled.

Streams with less than one sample per lane and block are small and share some slots of it. They are dealt out so
that each block holds its share of every stream. An era is a run of blocks. How many samples of each stream come
before an era is its share, rounded. Within the era the samples, laid stream after stream, are dealt to the blocks in
turn like cards. So a block's share of a stream is the era's share, rounded up or down, and a stream with less than
one sample per block still appears as often as it should.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from penstock.order.keys import hash_each_key, hash_key, permutation, shuffle_each, sort_groups
from penstock.order.lanes import lane_length
from penstock.order.lru import LRU

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.types import Int64Array

# Rows of a lane that are mixed in one go, in as many blocks as they hold: numpy's cost per call is paid once.
ROWS_AT_ONCE = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Positions side by side with a fixed mix: exact counts of samples, stream by stream."""

    start: int
    names: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Count the positions."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The mix as planned from a position on; a later version cuts it short."""

    start: int
    segments: tuple[Segment, ...]


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


_BLOCKS_PER_ERA = 256


def split_by_tree(weights: Sequence[int], total: int) -> list[int]:
    """Split a number in proportion to integer weights; no part ever shrinks as the number grows.

    Each node of a balanced tree gives its left side the rounded share and its right side the rest.
    """
    if len(weights) < 2:
        return [total] * len(weights)
    middle = len(weights) // 2
    left, right = weights[:middle], weights[middle:]
    everything = sum(weights)
    share = total * sum(left) // everything if everything else 0
    return split_by_tree(left, share) + split_by_tree(right, total - share)


def split_by_bounds(weights: Sequence[int], total: int) -> list[int]:
    """Split a number in proportion to integer weights, each part off by less than one.

    A part may shrink by one as the number grows, unless it is sure to grow by one or more.
    """
    everything, bound, floors = sum(weights), 0, [0]
    for weight in weights:
        bound += weight
        floors.append(total * bound // everything if everything else 0)
    return [after - before for before, after in pairwise(floors)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Era:
    first_block: int
    columns: Int64Array  # for each block, its turn in the deal
    bounds: Int64Array  # where each stream's samples begin when laid end to end
    before: Int64Array  # [block][stream]: samples dealt to earlier blocks, in this era and before


class SmallStreams:
    """Small streams that share some slots of each block; slot numbers count over the whole segment."""

    def __init__(self, counts: Sequence[int], num_blocks: int, slots_before: Callable[[int], int], key: int) -> None:
        self._num_blocks = num_blocks
        self._slots_before = slots_before
        # Streams with less than one sample per era, lightest first, are split among themselves.
        num_eras = num_blocks // _BLOCKS_PER_ERA
        self._order = sorted(range(len(counts)), key=counts.__getitem__)
        self._sorted = [counts[stream] for stream in self._order]
        self._num_rare = 0
        if num_eras > 1:
            slots_per_era = slots_before(_BLOCKS_PER_ERA)
            self._num_rare = sum(count * slots_per_era < sum(counts) for count in counts)
        self._key = key
        self._eras: LRU[_Era] = LRU(2)
        self._blocks: LRU[tuple[Int64Array, Int64Array]] = LRU(4)

    def blocks(self, block: int, num_blocks: int) -> tuple[Int64Array, Int64Array]:
        """Return stream and index within the stream for each slot of some blocks in a row."""
        return self._blocks((block, num_blocks), lambda: self._deal_all(range(block, block + num_blocks)))

    def dealt(self, block: int) -> Int64Array:
        """Count the samples of each stream in the blocks before this one."""
        if block >= self._num_blocks:
            return self._split(self._slots_before(block))
        era = self._era_of(block)
        before: Int64Array = era.before[block - era.first_block]
        return before

    def _split(self, num_slots: int) -> Int64Array:
        """Count the samples of each stream in the first slots, where an era begins."""
        rare, others = self._sorted[: self._num_rare], self._sorted[self._num_rare :]
        for_rare, *for_others = split_by_bounds([sum(rare), *others], num_slots)
        parts = np.empty(len(self._order), dtype=np.int64)
        parts[self._order] = [*split_by_tree(rare, for_rare), *for_others]
        return parts

    def _deal_all(self, blocks: range) -> tuple[Int64Array, Int64Array]:
        streams, indexes = [], []
        while blocks:
            era = self._era_of(blocks.start)
            here = blocks[: era.first_block + len(era.columns) - blocks.start]
            dealt = self._deal(era, here)
            streams.append(dealt)
            # Blocks of an era take from each stream one after the other.
            indexes.append(era.before[here.start - era.first_block][dealt] + rank_among_equals(dealt))
            blocks = blocks[len(here) :]
        return np.concatenate(streams), np.concatenate(indexes)

    def _deal(self, era: _Era, blocks: range) -> Int64Array:
        """Return the stream of each slot of some blocks of an era, each block's cards shuffled."""
        num_blocks, num_cards = len(era.columns), int(era.bounds[-1])
        columns = era.columns[blocks.start - era.first_block : blocks.stop - era.first_block]
        sizes = (num_cards - columns + num_blocks - 1) // num_blocks
        turns, is_card = shuffle_each(hash_each_key(blocks, "pool", self._key), sizes)
        cards = (turns * num_blocks + columns[:, None])[is_card]
        return np.searchsorted(era.bounds, cards, side="right").astype(np.int64) - 1

    def _era_of(self, block: int) -> _Era:
        # A short last era would round coarsely, so it joins the one before.
        number = min(block // _BLOCKS_PER_ERA, max(0, self._num_blocks // _BLOCKS_PER_ERA - 1))
        return self._eras(number, lambda: self._make_era(number))

    def _make_era(self, number: int) -> _Era:
        first = number * _BLOCKS_PER_ERA
        is_last = number >= self._num_blocks // _BLOCKS_PER_ERA - 1
        stop = self._num_blocks if is_last else first + _BLOCKS_PER_ERA
        num_blocks = stop - first
        base = self._split(self._slots_before(first))
        after = self._split(self._slots_before(stop))
        bounds = np.concatenate([[0], np.cumsum(after - base)])
        starts = np.array([self._slots_before(block) for block in range(first, stop + 1)], dtype=np.int64)
        columns = _match_columns(np.diff(starts), int(bounds[-1]), hash_key("era", self._key, number))
        # Card t goes to column t mod num_blocks: count the multiples between two bounds.
        below = (bounds[None, :] - columns[:, None] + num_blocks - 1) // num_blocks
        dealt = np.diff(below, axis=1)
        before = base + np.cumsum(dealt, axis=0) - dealt
        return _Era(first_block=first, columns=columns, bounds=bounds, before=before)


def _match_columns(sizes: Int64Array, num_cards: int, key: int) -> Int64Array:
    """Return each block a column of the deal with exactly as many cards as the block has slots."""
    num_blocks = len(sizes)
    num_long = num_cards % num_blocks
    is_long = sizes > num_cards // num_blocks
    columns = np.empty(num_blocks, dtype=np.int64)
    columns[is_long] = permutation(hash_key(key, "long"), num_long)
    columns[~is_long] = num_long + permutation(hash_key(key, "short"), num_blocks - num_long)
    return columns


def group_equals(labels: Int64Array) -> Iterator[tuple[int, Int64Array]]:
    """Yield each label that occurs, lowest first, and where it occurs, in order."""
    if not len(labels):
        return
    order = _sort_stably(labels)
    counts = np.bincount(labels)
    ends = np.cumsum(counts).tolist()
    for label in np.flatnonzero(counts).tolist():
        end = ends[label]
        yield label, order[end - int(counts[label]) : end]


def rank_among_equals(labels: Int64Array) -> Int64Array:
    """Number the occurrences of each label, in order, from 0."""
    order = _sort_stably(labels)
    sorted_labels = labels[order]
    is_first = np.ones(len(labels), dtype=bool)
    is_first[1:] = sorted_labels[1:] != sorted_labels[:-1]
    numbers = np.arange(len(labels), dtype=np.int64)
    firsts = np.maximum.accumulate(np.where(is_first, numbers, 0))
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[order] = numbers - firsts
    return ranks


def _sort_stably(labels: Int64Array) -> Int64Array:
    # Short integers are sorted by radix, several times faster.
    is_short = len(labels) > 0 and int(labels.max()) < 1 << 16
    return np.argsort(labels.astype(np.uint16) if is_short else labels, kind="stable")
