"""The shuffle algorithms by name: from shuffle units to a permutation of the epoch's positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.errors import ConfigError, UnknownAlgorithmError
from penstock.order.mosaic.ids import IdArray, dtype_for
from penstock.order.mosaic.intervals import (
    Intervals,
    ShuffleRule,
    divide,
    fill_shuffled,
    lay_end_to_end,
    shuffle_and_divide,
)
from penstock.order.mosaic.py1e import shuffle_py1e

if TYPE_CHECKING:
    from penstock.types import Int64Array


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
