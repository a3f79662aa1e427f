"""Where the lanes of a pass are: how they were dealt to ranks, which is arithmetic, and what ranks know of their own.

A lane is a part of a source with stages and a buffer of its own. What was taken of each follows from how many rows
each team of ranks has taken (`order/lanes.py`), and from where lanes ended. Where a lane is in its files is a *cursor*,
which only ranks that read it know: they leave notes of them in the job's own store, and a state holds the newest.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.data.ranks import find_job_store
from penstock.order.lanes import take_turns
from penstock.order.state_fields import COUNT, check_fields, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_CURSOR = {"lane": COUNT, "taken": COUNT, "at?": dict}
_FIELDS = {"lanes": range(1, 1 << 14), "dealt": [[COUNT]], "cursors": [_CURSOR]}
_NOTE_EVERY_S = 2.0
_NOTES_OF_LANE = 4  # ranks that are a few batches ahead of others leave those of before, too
_log = logging.getLogger("penstock.loaders")


class LaneCursor(NamedTuple):
    """A position in a lane, after so many of its rows; None where it has ended."""

    lane: int
    taken: int
    at: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class LanePlaces:
    """Where the lanes of a pass are.

    Args:
        num_lanes: How many there are.
        dealt: To how many teams of ranks they were dealt, one after the other, and the rows of each team since.
        cursors: What is known of lanes, any number of positions of each.
    """

    num_lanes: int
    dealt: tuple[tuple[int, int], ...] = ()
    cursors: tuple[LaneCursor, ...] = ()

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> LanePlaces:
        """Read what `to_state` wrote, which may be damaged."""
        known = check_fields(state, _FIELDS, "a pass over lanes")
        num_lanes, dealt = known["lanes"], [tuple(each) for each in known["dealt"]]
        for each in dealt:
            if len(each) != 2 or not each[0] or num_lanes % each[0]:
                raise refuse("dealt", known["dealt"], f"numbers of teams that {num_lanes} lanes are dealt to, and rows")
        cursors = [LaneCursor(each["lane"], each["taken"], each.get("at")) for each in known["cursors"]]
        if any(each.lane >= num_lanes for each in cursors):
            raise refuse("cursors", [each.lane for each in cursors], f"those of {num_lanes} lanes")
        return cls(num_lanes, tuple(dealt), tuple(cursors))

    def to_state(self) -> dict[str, Any]:
        """Describe it as plain JSON values."""
        return {
            "lanes": self.num_lanes,
            "dealt": [list(each) for each in self.dealt],
            "cursors": [each._asdict() for each in self.cursors],
        }

    def ends(self) -> dict[int, int]:
        """Return the rows of the lanes that are known to have ended."""
        return {each.lane: each.taken for each in self.cursors if each.at is None}

    def taken(self, ends: Mapping[int, int] | None = None) -> dict[int, int]:
        """Count what was taken of each lane, if those that have ended ended there."""
        known = self.ends() if ends is None else ends
        taken = dict.fromkeys(range(self.num_lanes), 0)
        for num_teams, count in self.dealt:
            for team in range(num_teams):
                lanes = range(team, self.num_lanes, num_teams)
                taken |= take_turns({lane: taken[lane] for lane in lanes}, count, known)
        return taken

    def beside(self, lanes: Iterable[int]) -> list[int]:
        """Return these lanes and all on whose ends it depends what was taken of them."""
        found, size = set(lanes), 0
        while len(found) > size:
            size = len(found)
            teams = {(num_teams, lane % num_teams) for num_teams, _ in self.dealt for lane in found}
            found |= {lane for n, team in teams for lane in range(team, self.num_lanes, n)}
        return sorted(found)

    def newest(self, lane: int, at_most: int) -> LaneCursor | None:
        """Return the newest cursor of a lane that is not after so many rows."""
        known = [each for each in self.cursors if each.lane == lane and each.taken <= at_most]
        return max(known, key=lambda each: (each.taken, each.at is None), default=None)

    def dealt_on(self, num_teams: int, count: int, cursors: Iterable[LaneCursor]) -> LanePlaces:
        """Return where lanes are after so many more rows of each team, with the newest of all cursors."""
        *before, last = self.dealt or ((num_teams, 0),)
        if last[0] == num_teams:
            dealt = (*before, (num_teams, last[1] + count))
        else:
            dealt = (*self.dealt, (num_teams, count)) if count else self.dealt
        moved = replace(self, dealt=tuple(dealt), cursors=(*self.cursors, *cursors))
        taken = moved.taken()
        newest = [moved.newest(lane, taken[lane]) for lane in range(self.num_lanes)]
        ends = [LaneCursor(lane, end, None) for lane, end in moved.ends().items() if end > taken[lane]]
        return replace(moved, cursors=(*(each for each in newest if each is not None), *ends))


def find_places(
    place: LanePlaces, ends: Mapping[int, int], go: Mapping[int, Callable[[int], LaneCursor]]
) -> dict[int, LaneCursor]:
    """Go to where each lane is; one that ends before changes what was taken of others that the same ranks read."""
    known, found = dict(ends), dict[int, LaneCursor]()
    is_settled = False
    while not is_settled:
        is_settled, taken = True, place.taken(known)
        for lane, go_to in go.items():
            found[lane] = go_to(taken[lane])
            if found[lane].taken < taken[lane]:
                known[lane], is_settled = found[lane].taken, False
    return found


@dataclass(slots=True)
class LaneNotes:
    """What ranks tell each other of lanes through the store of the job, which is no collective: none waits."""

    question: str  # the same on all ranks for the same lanes
    num_ranks: int
    told: dict[int, list[LaneCursor]] = field(default_factory=dict)
    _next_s: float = 0.0

    def is_due(self) -> bool:
        """Return whether it is time for another note."""
        return time.monotonic() >= self._next_s

    def tell(self, cursors: Sequence[LaneCursor]) -> None:
        """Leave notes for the others."""
        self._next_s = time.monotonic() + _NOTE_EVERY_S
        store = self._store()
        for each in cursors if store is not None else ():
            told = self.told.setdefault(each.lane, [])
            if each not in told[-1:]:
                told.append(each)
            del told[:-_NOTES_OF_LANE]
            store.set(self._key(each.lane), json.dumps(told))

    def hear(self, num_lanes: int) -> list[LaneCursor]:
        """Return the notes of all ranks."""
        store = self._store()
        found = [] if store is None else store.get_all([self._key(lane) for lane in range(num_lanes)])
        return [LaneCursor(*each) for notes in found for each in json.loads(notes)]

    def _key(self, lane: int) -> str:
        return f"penstock/lanes/{self.question}/{lane}"

    def _store(self) -> Any:
        store = find_job_store()
        return store if store is not None and store.num_ranks == self.num_ranks else None
