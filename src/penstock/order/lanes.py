"""Positions and lanes: position p is place `p // num_lanes` of lane `p % num_lanes`; and which ranks read which."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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


# --- Ranks and lanes that were dealt to other ranks -------------------------------------------------------------------


class Team(NamedTuple):
    """The ranks that read the same lanes: every so many-th lane, and each rank every so many-th row of them."""

    number: int
    num_teams: int
    member: int
    num_members: int

    def lanes(self, num_lanes: int) -> range:
        """Return the lanes that it reads."""
        return range(self.number, num_lanes, self.num_teams)


def find_team(rank: int, num_ranks: int, num_lanes: int) -> Team:
    """Deal lanes to ranks so that each batch of all ranks has the samples that it has in any other world."""
    num_teams = math.gcd(num_ranks, num_lanes)
    member, number = divmod(rank, num_teams)
    return Team(number, num_teams, member, num_ranks // num_teams)


def choose_num_lanes(num_ranks: int, most: int) -> int:
    """Return the largest number of lanes, as many as there can be, that the number of ranks is a multiple of."""
    return next(count for count in range(min(num_ranks, max(1, most)), 0, -1) if num_ranks % count == 0)


def take_turns(taken: Mapping[int, int], count: int, ends: Mapping[int, int]) -> dict[int, int]:
    """Return what is taken of each lane after so many more samples, each from the lane that has given the fewest.

    Lanes that have ended, where `ends` says, give no more; so do all, if there are not so many samples.
    """

    def up_to(level: int) -> dict[int, int]:
        return {lane: max(given, min(level, ends.get(lane, level))) for lane, given in taken.items()}

    low, total = min(taken.values(), default=0), sum(taken.values()) + count
    high = max(taken.values(), default=0) + count
    while low < high:  # the highest level that all of them come to
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(up_to(middle).values()) <= total else (low, middle - 1)
    filled = up_to(low)
    more = [lane for lane in sorted(taken) if filled[lane] == low != ends.get(lane)]
    for lane in more[: total - sum(filled.values())]:
        filled[lane] += 1
    return filled
