"""Intervals of neighbouring positions, shuffled as wholes and divided evenly over the canonical nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from penstock.order.mosaic.ids import IdArray
    from penstock.types import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleRule:
    """What decides a shuffle besides its units: the nodes to keep apart, how wide to mix, and the draws."""

    num_canonical_nodes: int
    seed: int
    epoch: int
    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Intervals of positions in order of use: where each begins and how many positions it has (never 0)."""

    begins: Int64Array
    sizes: Int64Array

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def num_samples(self) -> int:
        """Count the positions of all intervals."""
        return int(self.sizes.sum())

    def take(self, which: Int64Array | slice) -> Intervals:
        """Pick intervals, in the order asked for."""
        return Intervals(begins=self.begins[which], sizes=self.sizes[which])


def lay_end_to_end(units: Int64Array) -> Intervals:
    """Make each shuffle unit an interval, the first one beginning at position 0."""
    return Intervals(begins=np.cumsum(units) - units, sizes=units)


def divide(intervals: Intervals, num_parts: int) -> list[Intervals]:
    """Cut the intervals, read one after the other, into parts of equal length up to one."""
    ends = np.cumsum(intervals.sizes)
    num_samples = int(ends[-1]) if len(ends) else 0
    part_ends = num_samples * np.arange(1, num_parts + 1) // num_parts
    # Every piece lies between two neighbouring cuts, be they ends of intervals or of parts.
    cuts = np.unique(np.concatenate([ends, part_ends, np.zeros(1, np.int64)]))
    piece_begins, piece_sizes = cuts[:-1], np.diff(cuts)
    source = np.searchsorted(ends, piece_begins, side="right")
    inside = piece_begins - (ends[source] - intervals.sizes[source])
    pieces = Intervals(begins=intervals.begins[source] + inside, sizes=piece_sizes)
    first_pieces = np.searchsorted(piece_begins, np.concatenate([np.zeros(1, np.int64), part_ends]))
    return [
        pieces.take(slice(begin, end))
        for begin, end in zip(first_pieces[:-1].tolist(), first_pieces[1:].tolist(), strict=True)
    ]


def shuffle_and_divide(units: Int64Array, rule: ShuffleRule) -> tuple[list[Intervals], np.random.Generator]:
    """Return each canonical node its intervals in this epoch's order, and the generator for all further draws.

    Which intervals a node gets depends on the seed alone, so that a node meets the same shards in every epoch.
    """
    intervals = lay_end_to_end(units).take(np.random.default_rng(rule.seed).permutation(len(units)))
    parts = divide(intervals, rule.num_canonical_nodes)
    draws = np.random.default_rng(rule.seed + rule.epoch)
    return [part.take(draws.permutation(len(part))) for part in parts], draws


def fill_shuffled(order: IdArray, intervals: Intervals, draws: np.random.Generator) -> None:
    """Write the positions of one interval after the other, each interval shuffled in itself."""
    begin = 0
    for first, size in zip(intervals.begins.tolist(), intervals.sizes.tolist(), strict=True):
        positions = np.arange(first, first + size)
        draws.shuffle(positions)
        order[begin : begin + size] = positions
        begin += size
