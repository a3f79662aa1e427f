"""The shuffle algorithms by name: from shuffle units to a permutation of the epoch's positions.

Shards, or runs of samples of them, are intervals of neighbouring positions: they are shuffled as wholes and divided
evenly over the canonical nodes. The algorithms differ in what happens to the positions within.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, UnknownAlgorithmError
from penstock.order.mosaic.ids import PIECE, IdArray, dtype_for

if TYPE_CHECKING:
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


class WordSorter:
    """Tells the sequence of up to `capacity` places, equal ones as they came, faster than numpy's argsort.

    Each place is rounded down to the bits that are left beside its index in one machine word; words sort
    fast. The few that rounding made equal are then put right by their exact places.
    """

    def __init__(self, capacity: int) -> None:
        self._words = np.empty(capacity, np.int64)
        self._spare = np.empty(capacity, np.float64)

    def __call__(self, places: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the indices of the places in ascending order; valid until the next call."""
        count = len(places)
        if not count:
            return self._words[:0]
        words = self._words[:count]
        index_bits = (count - 1).bit_length()
        lowest = math.floor(places.min())
        _, integer_bits = math.frexp(float(places.max()) - lowest)
        scale = math.ldexp(1.0, 62 - index_bits - integer_bits)
        for begin in range(0, count, PIECE):
            piece = slice(begin, min(begin + PIECE, count))
            words[piece] = (places[piece] - lowest) * scale
            words[piece] <<= index_bits
            words[piece] |= np.arange(piece.start, piece.stop)
        words.sort()
        ties = _find_ties(words, index_bits)
        rounded = words[ties] >> index_bits
        words &= (1 << index_bits) - 1
        tied = words[ties]
        words[ties] = tied[np.lexsort((places[tied], rounded))]
        return words

    def pick(self, array: npt.NDArray[Any], indices: npt.NDArray[np.int64]) -> None:
        """Move the elements at these indices to the front of an array, in their order."""
        picked = self._spare.view(array.dtype)[: len(indices)]
        np.take(array, indices, out=picked, mode="clip")
        array[: len(indices)] = picked


def _find_ties(words: npt.NDArray[np.int64], index_bits: int) -> npt.NDArray[np.int64]:
    """Return where sorted words have a neighbour that differs from them in its index only."""
    is_tied = np.zeros(len(words), np.bool_)
    for begin in range(0, len(words) - 1, PIECE):
        rounded = words[begin : begin + PIECE + 1] >> index_bits
        is_same = rounded[1:] == rounded[:-1]
        is_tied[begin : begin + len(is_same)] |= is_same
        is_tied[begin + 1 : begin + 1 + len(is_same)] |= is_same
    return np.flatnonzero(is_tied)


class ShuffleAlgorithm(Protocol):
    """Permutes the positions of an epoch made of units; same arguments, same permutation."""

    def __call__(self, units: Int64Array, rule: ShuffleRule) -> IdArray:
        """Return the permutation as an array of positions."""


def shuffle_algorithm(name: str) -> ShuffleAlgorithm:
    """Find a shuffle algorithm by its name."""
    if name not in _ALGORITHMS:
        raise UnknownAlgorithmError(f"unknown shuffle_algo {name!r}: use one of {', '.join(sorted(_ALGORITHMS))}")
    return _ALGORITHMS[name]


def shuffle_naive(units: Int64Array, rule: ShuffleRule) -> IdArray:
    """Permute all positions at once, whatever the shards."""
    num_samples = int(units.sum())
    permuted = np.random.default_rng(rule.seed + rule.epoch).permutation(num_samples)
    return permuted.astype(dtype_for(num_samples), copy=False)


def shuffle_py1s(units: Int64Array, rule: ShuffleRule) -> IdArray:
    """Shuffle intervals, then the positions of each interval."""
    parts, draws = shuffle_and_divide(units, rule)
    order = _empty_order(units)
    begin = 0
    for part in parts:
        end = begin + part.num_samples
        fill_shuffled(order[begin:end], part, draws)
        begin = end
    return order


def shuffle_py1b(units: Int64Array, rule: ShuffleRule) -> IdArray:
    """Shuffle intervals, then the positions in blocks of fixed size."""
    if rule.block_size < 1:
        raise ConfigError(f"shuffle_block_size is {rule.block_size}: py1b needs at least 1")
    parts, draws = shuffle_and_divide(units, rule)
    order = _empty_order(units)
    begin = 0
    for part in parts:
        end = _fill_ascending(order, begin, part)
        for block_begin in range(begin, end, rule.block_size):
            _shuffle_range(order, block_begin, min(block_begin + rule.block_size, end), draws)
        begin = end
    return order


def shuffle_py1br(units: Int64Array, rule: ShuffleRule) -> IdArray:
    """Shuffle intervals, then the positions in staggered blocks of random size, which overlap their neighbours."""
    shortest, longest = int(0.75 * rule.block_size), int(1.25 * rule.block_size)
    if shortest < 1:
        raise ConfigError(
            f"shuffle_block_size (or a stream's share of it) is {rule.block_size}: py1br needs at least 2"
        )
    parts, draws = shuffle_and_divide(units, rule)
    staggers = draws.integers(0, shortest, (rule.num_canonical_nodes,)).tolist()
    order = _empty_order(units)
    begin = 0
    for part, stagger in zip(parts, staggers, strict=True):
        end = _fill_ascending(order, begin, part)
        blocks = []
        at = begin
        while at < end:
            size = int(draws.integers(shortest, longest))
            block = (max(at - stagger, begin), min(at + size - stagger, end))
            blocks.append(block)
            at += block[1] - block[0]
        for block_begin, block_end in blocks:
            _shuffle_range(order, block_begin, block_end, draws)
        begin = end
    return order


def shuffle_py2s(units: Int64Array, rule: ShuffleRule) -> IdArray:
    """Shuffle intervals and their positions once for all epochs, divide, and shuffle both again for this epoch."""
    fixed = np.random.default_rng(rule.seed)
    intervals = lay_end_to_end(units).take(fixed.permutation(len(units)))
    fixed_order = _empty_order(units)
    fill_shuffled(fixed_order, intervals, fixed)
    order = _empty_order(units)
    draws = np.random.default_rng(rule.seed + rule.epoch)
    begin = 0
    for part in divide(lay_end_to_end(intervals.sizes), rule.num_canonical_nodes):
        pieces = part.take(draws.permutation(len(part)))
        for first, size in zip(pieces.begins.tolist(), pieces.sizes.tolist(), strict=True):
            positions = fixed_order[first : first + size].astype(np.int64)
            draws.shuffle(positions)
            order[begin : begin + size] = positions
            begin += size
    return order


_ALGORITHMS: dict[str, ShuffleAlgorithm] = {
    "naive": shuffle_naive,
    "py1b": shuffle_py1b,
    "py1br": shuffle_py1br,
    "py1e": shuffle_py1e,
    "py1s": shuffle_py1s,
    "py2s": shuffle_py2s,
}


def _empty_order(units: Int64Array) -> IdArray:
    num_samples = int(units.sum())
    return np.empty(num_samples, dtype_for(num_samples))


def _fill_ascending(order: IdArray, begin: int, part: Intervals) -> int:
    for first, size in zip(part.begins.tolist(), part.sizes.tolist(), strict=True):
        order[begin : begin + size] = np.arange(first, first + size)
        begin += size
    return begin


def _shuffle_range(order: IdArray, begin: int, end: int, draws: np.random.Generator) -> None:
    # The generator has a faster path for machine words, well worth the copy.
    positions = order[begin:end].astype(np.int64)
    draws.shuffle(positions)
    order[begin:end] = positions
