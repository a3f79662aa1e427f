"""Dealing small streams out over blocks, so that each block holds its share of every stream.

An era is a run of blocks. How many samples of each stream come before an era is its share, rounded. Within
the era the samples, laid stream after stream, are dealt to the blocks in turn like cards. So a block's
share of a stream is the era's share, rounded up or down, and a stream with less than one sample per block
still appears as often as it should.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock.order.keys import hash_each_key, hash_key, permutation, shuffle_each
from penstock.order.lru import LRU

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.types import Int64Array

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
