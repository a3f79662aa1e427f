"""Positions and lanes: position p is place `p // num_lanes` of lane `p % num_lanes`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from penstock.types import Int64Array

Ids: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.uint32]"  # as narrow as they can be kept
# A run of ids of one lane, and the place in the lane where it begins.
Chunk: TypeAlias = tuple[int, Ids]


def lane_length(num_positions: int, num_lanes: int, lane: int) -> int:
    """Count the positions below `num_positions` that belong to a lane."""
    return (num_positions - lane + num_lanes - 1) // num_lanes


def lane_start(num_positions: int, num_lanes: int, lane: int) -> int:
    """Add up the lengths of the lanes before this one."""
    share, rest = divmod(num_positions, num_lanes)
    return lane * share + min(lane, rest)


def split_passes(numbers: range, size: int) -> Iterator[tuple[int, range]]:
    """Yield the passes over so many samples that evenly spaced numbers lie in, each with the samples that they are."""
    while numbers:
        pass_id = numbers.start // size
        begin = pass_id * size
        num_here = len(range(numbers.start, min(numbers.stop, begin + size), numbers.step))
        here = numbers[:num_here]
        yield pass_id, range(here.start - begin, here.stop - begin, here.step)
        numbers = numbers[num_here:]


def read_lanes(positions: range, num_lanes: int, chunk_at: Callable[[int, int], Chunk]) -> Int64Array:
    """Collect the ids at evenly spaced positions from chunks of lanes.

    `chunk_at(lane, place)` gives a chunk that holds the place. Evenly spaced positions come back to the
    same lane after a fixed number of turns, so each lane is read in strides, without a Python step per id.
    """
    ids = np.empty(len(positions), dtype=np.int64)
    turns = num_lanes // math.gcd(num_lanes, positions.step)
    stride = positions.step * turns // num_lanes
    for turn, first in enumerate(positions[:turns]):
        place, lane = divmod(first, num_lanes)
        _fill(ids[turn::turns], lane, place, stride, chunk_at)
    return ids


def _fill(target: Int64Array, lane: int, place: int, stride: int, chunk_at: Callable[[int, int], Chunk]) -> None:
    done = 0
    while done < len(target):
        start, chunk = chunk_at(lane, place)
        part = chunk[place - start :: stride][: len(target) - done]
        target[done : done + len(part)] = part
        done += len(part)
        place += len(part) * stride
