"""The py1e shuffle: every sample of a shuffled interval moves a random way, so that neighbouring intervals mix.

The definition sorts a whole canonical node by moved places. No sample moves further than some half block, so
the sort can follow the intervals: once they have passed, the places behind them are final. That keeps the memory
at one permutation plus a few blocks, and every sort within reach of the cache. Equal places keep the sequence
of their intervals; the original leaves it to the processor, but at 10⁸ samples one such pair is to be expected.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ConfigError
from penstock.order.mosaic.ids import PIECE, IdArray, dtype_for
from penstock.order.mosaic.intervals import Intervals, ShuffleRule, fill_shuffled, shuffle_and_divide
from penstock.order.mosaic.wordsort import WordSorter

if TYPE_CHECKING:
    from penstock.types import Int64Array

# Sorting fewer samples at once would cost more in calls than it saves in cache misses.
_FEWEST_PER_SORT = 1 << 17


def shuffle_py1e(units: Int64Array, rule: ShuffleRule) -> IdArray:
    """Shuffle intervals, then the positions of each interval, then move each position up to about half a block away."""
    reach = _Reach(shortest=int(0.75 * rule.block_size), longest=int(1.25 * rule.block_size))
    parts, draws = shuffle_and_divide(units, rule)
    num_samples = int(units.sum())
    order = np.empty(num_samples, dtype_for(num_samples))
    begin = 0
    num_unmoved = 0
    for part_id, part in enumerate(parts):
        size = part.num_samples
        if not size:
            raise ConfigError(
                f"canonical node {part_id} of {rule.num_canonical_nodes} gets none of the {num_samples} "
                "samples: lower num_canonical_nodes"
            )
        num_unmoved += _shuffle_part(order[begin : begin + size], part, reach, draws)
        begin += size
    if num_unmoved:
        warnings.warn(
            f"{num_unmoved} of {sum(map(len, parts))} runs of samples are longer than a shuffle block of about"
            f" {rule.block_size}, so they were shuffled only within themselves: raise shuffle_block_size to mix"
            " them",
            stacklevel=2,
        )
    return order


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """The range of block sizes, drawn for each interval anew, that bounds how far its samples move."""

    shortest: int
    longest: int

    def __post_init__(self) -> None:
        if self.shortest >= self.longest:
            raise ConfigError("shuffle_block_size (or a stream's share of it) is 0: py1e needs at least 1")

    @property
    def furthest(self) -> float:
        """Return a bound on the way of any sample, in either direction."""
        return (self.longest - 1) / 2


def _shuffle_part(order: IdArray, part: Intervals, reach: _Reach, draws: np.random.Generator) -> int:
    """Fill the order of one canonical node; return how many intervals were too long to be moved."""
    fill_shuffled(order, part, draws)
    sorter = _FollowingSorter(order, reach.furthest)
    num_unmoved = 0
    begin = 0
    for size in part.sizes.tolist():
        slack = (int(draws.integers(reach.shortest, reach.longest)) - size) / 2
        num_unmoved += slack < 0
        slack = max(slack, 0.0)
        sorter.move(size, max(-slack, -begin), min(slack, len(order) - begin - size), draws)
        begin += size
    sorter.finish()
    return num_unmoved


class _FollowingSorter:
    """Sorts an array by moved places while they are being drawn, in place.

    Places are drawn for one interval after the other; a sample is put where it belongs as soon as no later interval can
    reach its place. What is written never overtakes what has been read. All working memory is taken once,
    because fresh pages cost more than the work done in them.
    """

    def __init__(self, order: IdArray, furthest: float) -> None:
        self._order = order
        self._furthest = furthest
        # Samples within twice the furthest way of the last one read may have to wait for the next sort.
        num_waiting = int(2 * furthest) + 1
        capacity = min(len(order), num_waiting + max(_FEWEST_PER_SORT, int(furthest)))
        self._places = np.empty(capacity, np.float64)
        self._values = np.empty(capacity, order.dtype)
        self._argsort = WordSorter(capacity)
        self._num_held = 0
        self._num_read = 0
        self._num_written = 0

    def move(self, size: int, low: float, high: float, draws: np.random.Generator) -> None:
        """Move each of the next `size` samples by something between `low` and `high`."""
        while size:
            count = min(size, len(self._places) - self._num_held, PIECE)
            held = slice(self._num_held, self._num_held + count)
            read = slice(self._num_read, self._num_read + count)
            self._places[held] = draws.uniform(low, high, count)
            self._places[held] += np.arange(read.start, read.stop, dtype=np.float64)
            self._values[held] = self._order[read]
            self._num_held += count
            self._num_read += count
            size -= count
            if self._num_held == len(self._places):
                self._write_below(self._num_read - self._furthest)

    def finish(self) -> None:
        """Put the last samples where they belong."""
        self._write_below(math.inf)

    def _write_below(self, horizon: float) -> None:
        """Write the samples whose place is below the horizon, the nearest one that a later interval can reach."""
        places, values = self._places[: self._num_held], self._values[: self._num_held]
        sequence = self._argsort(places)
        num_final = int(np.count_nonzero(places < horizon))
        final, waiting = sequence[:num_final], sequence[num_final:]
        written = self._order[self._num_written : self._num_written + num_final]
        # All numbers are in range; any mode but the default writes straight to its target.
        np.take(values, final, out=written, mode="clip")
        self._num_written += num_final
        self._num_held = len(waiting)
        self._argsort.pick(places, waiting)
        self._argsort.pick(values, waiting)
