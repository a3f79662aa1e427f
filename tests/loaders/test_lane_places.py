"""Where lanes are: what was taken of each, which cursor to start from, and the notes of ranks."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import ResumeError
from penstock.loaders.lane_places import LaneCursor, LaneNotes, LanePlaces, find_places


@pytest.mark.parametrize(
    ("num_lanes", "dealt", "ends", "expected"),
    [
        (1, [], {}, [0]),
        (1, [(1, 7)], {}, [7]),
        (3, [(3, 4)], {}, [4, 4, 4]),
        (3, [(3, 4), (1, 5)], {}, [6, 6, 5]),  # on one rank, then, or on two
        (4, [(4, 2), (2, 3)], {}, [4, 4, 3, 3]),
        (4, [(2, 6)], {1: 2}, [3, 2, 3, 4]),  # the other lane of its team gives what it did not
        (4, [(2, 6), (4, 2)], {1: 2}, [5, 2, 5, 6]),
    ],
)
def test_what_was_taken_of_each_lane(
    num_lanes: int, dealt: list[tuple[int, int]], ends: dict[int, int], expected: list[int]
) -> None:
    assert list(LanePlaces(num_lanes, tuple(dealt)).taken(ends).values()) == expected


@pytest.mark.parametrize(
    ("dealt", "lanes", "expected"),
    [
        ([], [1], [1]),
        ([(4, 2)], [1, 2], [1, 2]),
        ([(2, 2)], [1], [1, 3]),
        ([(4, 2), (2, 1)], [0], [0, 2]),
        ([(1, 2)], [3], [0, 1, 2, 3]),
    ],
)
def test_lanes_whose_ends_matter(dealt: list[tuple[int, int]], lanes: list[int], expected: list[int]) -> None:
    assert LanePlaces(4, tuple(dealt)).beside(lanes) == expected


def test_the_newest_cursor_that_is_not_ahead_is_kept() -> None:
    notes = [LaneCursor(0, taken, {"row": taken}) for taken in (2, 5, 9)] + [LaneCursor(1, 7, None)]
    place = LanePlaces(2).dealt_on(2, 6, notes)
    assert place.newest(0, 6) == LaneCursor(0, 5, {"row": 5})
    assert place.newest(1, 6) is None  # where it has ended is no position in it
    assert place.ends() == {1: 7}
    later = LanePlaces.read(place.to_state()).dealt_on(2, 4, [LaneCursor(0, 10, {"row": 10})])
    assert (later.dealt, later.taken()) == (((2, 10),), {0: 10, 1: 7})
    assert later.cursors == (LaneCursor(0, 10, {"row": 10}), LaneCursor(1, 7, None))
    assert later.dealt_on(1, 0, []).dealt == ((2, 10),)
    assert later.dealt_on(1, 3, []).dealt == ((2, 10), (1, 3))


def test_a_lane_that_ends_has_the_others_of_its_team_go_on() -> None:
    place, length = LanePlaces(2, ((1, 10),)), {0: 3, 1: 100}

    def go_in(lane: int) -> Any:
        return lambda taken: LaneCursor(lane, min(taken, length[lane]), {} if taken < length[lane] else None)

    assert find_places(place, {}, {lane: go_in(lane) for lane in length}) == {
        0: LaneCursor(0, 3, None),
        1: LaneCursor(1, 7, {}),
    }


@pytest.mark.parametrize(
    "damaged",
    [
        {"dealt": [[0, 4]]},
        {"dealt": [[2, 4]]},
        {"dealt": [[3]]},
        {"lanes": 0},
        {"lanes": 1 << 40},
        {"cursors": [{"lane": 3, "taken": 1, "at": {}}]},
        {"cursors": [{"lane": 0, "taken": -1, "at": {}}]},
    ],
)
def test_damaged_places_are_refused(damaged: dict[str, Any]) -> None:
    with pytest.raises(ResumeError):
        LanePlaces.read({"lanes": 3, "dealt": [[3, 4]], "cursors": [], **damaged})


def test_without_a_store_there_are_no_notes() -> None:
    notes = LaneNotes("lanes", 2)
    assert notes.is_due()
    notes.tell([LaneCursor(0, 1, {})])
    assert not notes.is_due()
    assert notes.hear(2) == []
