"""Positions and lanes: lanes share the positions evenly, and are read in strides."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.order.lanes import (
    Chunk,
    choose_num_lanes,
    find_team,
    lane_length,
    lane_start,
    read_lanes,
    take_turns,
)


@pytest.mark.parametrize(("num_positions", "num_lanes"), [(0, 3), (2, 3), (12, 4), (103, 7)])
def test_lanes_share_all_positions(num_positions: int, num_lanes: int) -> None:
    lengths = [len(range(lane, num_positions, num_lanes)) for lane in range(num_lanes)]
    assert [lane_length(num_positions, num_lanes, lane) for lane in range(num_lanes)] == lengths
    starts = [lane_start(num_positions, num_lanes, lane) for lane in range(num_lanes)]
    assert starts == [sum(lengths[:lane]) for lane in range(num_lanes)]


@pytest.mark.parametrize("positions", [range(100), range(5, 90, 3), range(7, 100, 4), range(10, 10)])
def test_positions_are_read_from_chunks_of_their_lanes(positions: range) -> None:
    num_lanes, chunk_length = 4, 6

    def chunk_at(lane: int, place: int) -> Chunk:
        start = place - place % chunk_length
        return start, np.arange(start, start + chunk_length) * num_lanes + lane

    assert read_lanes(positions, num_lanes, chunk_at).tolist() == list(positions)


@pytest.mark.parametrize(
    ("num_ranks", "num_lanes", "lanes", "members"),
    [
        (1, 1, [[0]], [0]),
        (3, 3, [[0], [1], [2]], [0, 0, 0]),
        (2, 4, [[0, 2], [1, 3]], [0, 0]),
        (4, 2, [[0], [1], [0], [1]], [0, 0, 1, 1]),  # two ranks share a lane
        (2, 3, [[0, 1, 2], [0, 1, 2]], [0, 1]),  # so that batches are as on three ranks
        (6, 4, [[0, 2], [1, 3], [0, 2], [1, 3], [0, 2], [1, 3]], [0, 0, 1, 1, 2, 2]),
    ],
)
def test_lanes_are_dealt_to_ranks(num_ranks: int, num_lanes: int, lanes: list[list[int]], members: list[int]) -> None:
    teams = [find_team(rank, num_ranks, num_lanes) for rank in range(num_ranks)]
    assert [list(team.lanes(num_lanes)) for team in teams] == lanes
    assert [team.member for team in teams] == members


@pytest.mark.parametrize(("num_ranks", "most", "expected"), [(1, 9, 1), (8, 5, 4), (6, 6, 6), (7, 6, 1), (4, 0, 1)])
def test_as_many_lanes_as_divide_the_ranks(num_ranks: int, most: int, expected: int) -> None:
    assert choose_num_lanes(num_ranks, most) == expected


@pytest.mark.parametrize(
    ("taken", "count", "ends", "expected"),
    [
        ({0: 0, 1: 0}, 5, {}, {0: 3, 1: 2}),
        ({1: 2, 3: 0}, 1, {}, {1: 2, 3: 1}),
        ({0: 4, 1: 0, 2: 1}, 3, {}, {0: 4, 1: 2, 2: 2}),
        ({0: 0, 1: 0}, 5, {0: 1}, {0: 1, 1: 4}),
        ({0: 0, 1: 0}, 9, {0: 1, 1: 3}, {0: 1, 1: 3}),
        ({5: 7}, 0, {}, {5: 7}),
        ({}, 3, {}, {}),
    ],
)
def test_the_lane_that_has_given_the_fewest_is_next(
    taken: dict[int, int], count: int, ends: dict[int, int], expected: dict[int, int]
) -> None:
    assert take_turns(taken, count, ends) == expected
    slow = dict(taken)
    for _ in range(count):
        left = [(given, lane) for lane, given in slow.items() if given < ends.get(lane, 99)]
        if left:
            slow[min(left)[1]] += 1
    assert slow == expected
