"""Several shards read side by side, a few rows of each in turn; and one rank's share of what all of them read."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from penstock.blocks.block import Block, join_blocks
from penstock.blocks.stage import close, counted, resume
from penstock.errors import ResumeError
from penstock.order.keys import draw, hash_key
from penstock.order.state_fields import COUNT, check_fields, refuse
from penstock.sources.row_ranges import RangeStage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.stage import Stage, State
    from penstock.sources.row_ranges import RangeReading, RowRange

_GROUPS_AT_ONCE = 64
_FIELDS = {"next": COUNT, "turn": COUNT, "open": [{"piece": COUNT}]}


@dataclass(slots=True)
class _OpenRange:
    number: int
    stage: RangeStage
    rest: Block = field(default_factory=Block)

    def get_state(self) -> State:
        position = self.stage.get_state() if self.rest.after is None else self.rest.after(0)
        return {"piece": self.number, **position}


class InterleavedStage:
    """Reads some ranges side by side: so many rows of each in turn; where one ends, the next takes its place.

    Args:
        ranges: What to read.
        reading: How they are read; the order does not depend on it.
        num_open: How many are read side by side.
        rows_in_turn: Rows of each before it is the next one's turn; None where only one is open: any number.
    """

    def __init__(
        self, ranges: Sequence[RowRange], reading: RangeReading, *, num_open: int, rows_in_turn: int | None
    ) -> None:
        self._ranges, self._reading = ranges, reading
        self._num_open, self._rows_in_turn = num_open, rows_in_turn
        self._next = 0  # range to open
        self._turn = 0
        self._open: list[_OpenRange] = []
        self._here: State | None = None  # where the next turn begins, once one is over

    def close(self) -> None:
        """Close all shards."""
        for each in self._open:
            each.stage.close()

    def next(self) -> Block:
        """Read the next rows of the range whose turn it is."""
        start = self._here
        if start is None and self._rows_in_turn is not None:
            start = self.get_state()
        while True:
            while len(self._open) < self._num_open and self._next < len(self._ranges):
                self._open.append(self._open_next())
            if not self._open:
                return Block()
            self._turn %= len(self._open)
            current = self._open[self._turn]
            rows = self._take(current)
            if len(rows) and self._rows_in_turn is None:
                assert rows.after is not None  # noqa: S101
                return rows.at(partial(_in_only_one, self._next, self._turn, current.number, rows.after))
            if len(rows):
                self._turn += 1
                end = self._here = self.get_state()
                return counted(rows, start or end, end)
            current.stage.close()
            if self._next < len(self._ranges):
                self._open[self._turn] = self._open_next()
            else:
                del self._open[self._turn]

    def _take(self, current: _OpenRange) -> Block:
        """Take the rows of a turn; fewer where the range ends, or before an error, which comes again."""
        parts: list[Block] = []
        left = self._rows_in_turn or sys.maxsize
        while left and not (parts and self._rows_in_turn is None):
            try:
                rows = current.rest if len(current.rest) else current.stage.next()
            except Exception:
                if not parts:
                    raise
                break
            if not len(rows):
                break
            part, current.rest = rows.split(left)
            parts.append(part)
            left -= len(part)
        return join_blocks(parts)

    def _open_next(self) -> _OpenRange:
        number, self._next = self._next, self._next + 1
        return _OpenRange(number, RangeStage(self._ranges[number], self._reading))

    def get_state(self) -> State:
        """Return which ranges are open, and where they are."""
        return {"next": self._next, "turn": self._turn, "open": [each.get_state() for each in self._open]}

    def set_state(self, state: State) -> None:
        """Open the ranges of a state."""
        check_fields(state, _FIELDS, "an iterator over shards side by side")
        self.close()
        numbers = {each["piece"] for each in state["open"]}
        if max([state["next"], *(number + 1 for number in numbers)]) > len(self._ranges):
            raise ResumeError("the state belongs to a source with more shards than this one")
        if not len(numbers) == len(state["open"]) <= self._num_open:
            raise refuse("open", sorted(numbers), f"at most {self._num_open} different shards")
        self._next, self._turn = state["next"], state["turn"]
        self._open, self._here = [self._reopen(each["piece"], each) for each in state["open"]], None

    def _reopen(self, number: int, position: State) -> _OpenRange:
        stage = RangeStage(self._ranges[number], self._reading, is_at_beginning=False)
        return _OpenRange(number, stage, resume(stage, position))


def _in_only_one(following: int, turn: int, number: int, after: PositionAfter, given: int) -> State:
    return {"next": following, "turn": turn, "open": [{"piece": number, **after(given)}]}


class SplitStage:
    """Every so many-th row, for one of several ranks that all read the same: each gets as many as the others.

    Which one of a group changes from group to group, so that no rank sees only one side of what alternates.
    """

    def __init__(self, rows: Stage, *, rank: int, num_ranks: int, pads: bool, seed: int) -> None:
        self._input, self._rank, self._num_ranks, self._pads = rows, rank, num_ranks, pads
        self._key, self._group = hash_key("split", seed), 0
        self._rest = Block()  # of the input

    def close(self) -> None:
        """Close the input."""
        close(self._input)

    def next(self) -> Block:
        """Read a group or more, and keep one row of each."""
        rows = self._rest
        while len(rows) < self._num_ranks and len(more := self._input.next()):
            rows = join_blocks([rows, more]) if len(rows) else more
        group, num_groups = self._group, min(_GROUPS_AT_ONCE, len(rows) // self._num_ranks)
        num_left = 0 if num_groups else len(rows)  # at the end
        rows, self._rest = rows.split(num_groups * self._num_ranks + num_left)
        groups = np.arange(group, group + num_groups + 1, dtype=np.uint64)
        within = ((draw(self._key, groups) + np.uint64(self._rank)) % np.uint64(self._num_ranks)).astype(np.int64)
        mine = np.arange(num_groups) * self._num_ranks + within[:-1]
        if num_left and self._pads:
            mine = within[-1:] % num_left
        self._group += num_groups
        after = rows.after and partial(_after_groups, rows.after, len(rows), group, self._num_ranks)
        return rows.pick(mine).at(after)

    def get_state(self) -> State:
        """Return which group is next, and where the input is."""
        after = self._rest.after
        return {"group": self._group, "samples": self._input.get_state() if after is None else after(0)}

    def set_state(self, state: State) -> None:
        """Go to a group."""
        check_fields(state, {"group": COUNT, "samples": dict}, "an iterator over the samples of a rank")
        self._group = state["group"]
        self._rest = resume(self._input, state["samples"])


def _after_groups(after: PositionAfter, num_rows: int, group: int, num_ranks: int, given: int) -> State:
    """Describe the position after one row of so many groups; the last may be smaller."""
    return {"group": group + min(given, num_rows // num_ranks), "samples": after(min(given * num_ranks, num_rows))}
