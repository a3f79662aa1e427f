"""The py1e shuffle: every sample of a shuffled run moves a random way, so that neighbouring runs mix.

The definition sorts a whole canonical node by moved places. No sample moves further than some half block, so
the sort can follow the runs: once they have passed, the places behind them are final. That keeps the
memory at one permutation plus a few blocks, and every sort within reach of the cache.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError
from penstock.order.mosaic.ids import IdArray, dtype_for
from penstock.order.mosaic.spans import ShuffleRule, Spans, fill_shuffled, shuffle_and_divide

if TYPE_CHECKING:
    from penstock.types import Int64Array

_Floats = npt.NDArray[np.float64]

# Sorting fewer samples at once would cost more in calls than it saves in cache misses.
_FEWEST_PER_SORT = 1 << 17


def shuffle_py1e(units: Int64Array, rule: ShuffleRule) -> IdArray:
    """Shuffle runs, then the positions of each run, then move each position up to about half a block away."""
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
            f"{num_unmoved} of {sum(map(len, parts))} runs of samples are longer than a shuffle block of "
            f"about {rule.block_size} and were shuffled only within themselves: "
            "raise shuffle_block_size to mix them",
            stacklevel=2,
        )
    return order


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """The range of block sizes, drawn for each run anew, that bounds how far its samples move."""

    shortest: int
    longest: int

    def __post_init__(self) -> None:
        if self.shortest >= self.longest:
            raise ConfigError("shuffle_block_size (or a stream's share of it) is 0: py1e needs at least 1")

    @property
    def furthest(self) -> float:
        """Return a bound on the way of any sample, in either direction."""
        return (self.longest - 1) / 2


def _shuffle_part(order: IdArray, part: Spans, reach: _Reach, draws: np.random.Generator) -> int:
    """Fill the order of one canonical node; return how many runs were too long to be moved."""
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

    Places are drawn for one run after the other; a sample is put where it belongs as soon as no later run can
    reach its place. What is written never overtakes what has been read.
    """

    def __init__(self, order: IdArray, furthest: float) -> None:
        self._order = order
        self._furthest = furthest
        self._per_sort = max(_FEWEST_PER_SORT, int(furthest))
        self._moves = np.empty(min(self._per_sort, len(order)), np.float64)
        self._num_moves = 0
        self._num_read = 0
        self._num_written = 0
        self._waiting_places: _Floats = np.empty(0, np.float64)
        self._waiting_values: IdArray = np.empty(0, order.dtype)

    def move(self, size: int, low: float, high: float, draws: np.random.Generator) -> None:
        """Draw the moves of the next `size` samples between `low` and `high`."""
        while size:
            count = min(size, len(self._moves) - self._num_moves)
            self._moves[self._num_moves : self._num_moves + count] = draws.uniform(low, high, count)
            self._num_moves += count
            size -= count
            if self._num_moves == len(self._moves):
                end = self._num_read + self._num_moves
                self._sort_below(end - self._furthest)

    def finish(self) -> None:
        """Put the last samples where they belong."""
        self._sort_below(math.inf)

    def _sort_below(self, horizon: float) -> None:
        """Write the samples whose place is below the horizon, the nearest one that a later run can reach."""
        end = self._num_read + self._num_moves
        places = np.arange(self._num_read, end, dtype=np.float64)
        places += self._moves[: self._num_moves]
        places = np.concatenate([self._waiting_places, places])
        values = np.concatenate([self._waiting_values, self._order[self._num_read : end]])
        self._num_read, self._num_moves = end, 0
        is_final = places < horizon
        # Picking by number is far faster than by mask where the two kinds alternate at random.
        final, waiting = np.flatnonzero(is_final), np.flatnonzero(~is_final)
        self._waiting_places, self._waiting_values = places[waiting], values[waiting]
        places, values = places[final], values[final]
        self._order[self._num_written : self._num_written + len(values)] = values[_argsort(places)]
        self._num_written += len(values)


def _argsort(places: _Floats) -> npt.NDArray[np.int64]:
    """Sort distinct or equal places stably, several times faster than numpy's own argsort.

    Each place is rounded down to the bits that are left beside its index in one machine word; words sort
    fast. The few that rounding made equal are then put right by their exact places.
    """
    count = len(places)
    if count < 2:
        return np.arange(count)
    index_bits = (count - 1).bit_length()
    lowest = math.floor(places.min())
    _, integer_bits = math.frexp(float(places.max()) - lowest)
    scale = math.ldexp(1.0, 62 - index_bits - integer_bits)
    words = ((places - lowest) * scale).astype(np.int64)
    words <<= index_bits
    words |= np.arange(count)
    words.sort()
    indices: npt.NDArray[np.int64] = words & ((1 << index_bits) - 1)
    words >>= index_bits
    is_tie = words[1:] == words[:-1]
    if is_tie.any():
        in_tie = np.zeros(count, np.bool_)
        in_tie[1:] |= is_tie
        in_tie[:-1] |= is_tie
        tied = indices[in_tie]
        indices[in_tie] = tied[np.lexsort((places[tied], words[in_tie]))]
    return indices
