"""Several shards read side by side, a few rows of each in turn; and one rank's share of what all of them read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from penstock.blocks.block import Block
from penstock.errors import ResumeError
from penstock.order.keys import draw, hash_key
from penstock.order.state_fields import COUNT, refuse
from penstock.sources.iterators import SampleIterator
from penstock.sources.row_ranges import RangeIterator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.stage import State
    from penstock.order.state_fields import Fields
    from penstock.sources.row_ranges import RangeReading, RowRange

_GROUPS_AT_ONCE = 64


class InterleavedIterator(SampleIterator):
    """Reads some ranges side by side: so many rows of each in turn; where one ends, the next takes its place.

    Args:
        ranges: What to read.
        reading: How they are read; the order does not depend on it.
        num_open: How many are read side by side.
        rows_in_turn: Rows of each before it is the next one's turn; None where only one is open: any number.
    """

    state_fields: ClassVar[Fields] = {"next": COUNT, "turn": COUNT, "open": [{"piece": COUNT}]}

    def __init__(
        self, ranges: Sequence[RowRange], reading: RangeReading, *, num_open: int, rows_in_turn: int | None
    ) -> None:
        super().__init__()
        self._ranges, self._reading = ranges, reading
        self._num_open, self._rows_in_turn = num_open, rows_in_turn
        self._next = 0  # range to open
        self._turn = 0
        self._open: list[tuple[int, RangeIterator]] = []  # with the number of the range

    def close(self) -> None:
        """Close all shards."""
        for _, rows in self._open:
            rows.close()

    def next(self) -> Block:
        """Read the next rows of the range whose turn it is."""
        while True:
            while len(self._open) < self._num_open and self._next < len(self._ranges):
                self._open.append(self._open_next())
            if not self._open:
                return Block()
            self._turn %= len(self._open)
            number, current = self._open[self._turn]
            count = self._rows_in_turn
            taken = current.read_block() if count is None else current.read_block(count, count)
            if len(taken) and count is None:
                assert taken.after is not None  # noqa: S101
                return taken.at(partial(_in_only_one, self._next, self._turn, number, taken.after))
            if len(taken):
                self._turn += 1
                return taken.at(None)
            current.close()
            if self._next < len(self._ranges):
                self._open[self._turn] = self._open_next()
            else:
                del self._open[self._turn]

    def _open_next(self) -> tuple[int, RangeIterator]:
        number, self._next = self._next, self._next + 1
        return number, RangeIterator(self._ranges[number], self._reading)

    def get_state(self) -> State:
        """Return which ranges are open, and where they are."""
        return {
            "next": self._next,
            "turn": self._turn,
            "open": [{"piece": number, **rows.state_dict()} for number, rows in self._open],
        }

    def set_state(self, state: State) -> None:
        """Open the ranges of a state."""
        self.close()
        numbers = {each["piece"] for each in state["open"]}
        if max([state["next"], *(number + 1 for number in numbers)]) > len(self._ranges):
            raise ResumeError("the state belongs to a source with more shards than this one")
        if not len(numbers) == len(state["open"]) <= self._num_open:
            raise refuse("open", sorted(numbers), f"at most {self._num_open} different shards")
        self._next, self._turn = state["next"], state["turn"]
        self._open = [self._reopen(dict(each)) for each in state["open"]]

    def _reopen(self, state: State) -> tuple[int, RangeIterator]:
        number = state.pop("piece")
        rows = RangeIterator(self._ranges[number], self._reading, is_at_beginning=False)
        rows.load_state_dict(state)
        return number, rows


def _in_only_one(following: int, turn: int, number: int, after: PositionAfter, given: int) -> State:
    return {"next": following, "turn": turn, "open": [{"piece": number, **after(given)}]}


class SplitIterator(SampleIterator):
    """Every so many-th sample, for one of several ranks that all read the same: each gets as many as the others.

    Which one of a group changes from group to group, so that no rank sees only one side of what alternates.
    """

    state_fields: ClassVar[Fields] = {"group": COUNT, "samples": dict}

    def __init__(self, samples: SampleIterator, *, rank: int, num_ranks: int, pads: bool, seed: int) -> None:
        super().__init__()
        self._samples, self._rank, self._num_ranks, self._pads = samples, rank, num_ranks, pads
        self._key, self._group = hash_key("split", seed), 0

    def close(self) -> None:
        """Close the input."""
        self._samples.close()

    def next(self) -> Block:
        """Read some groups, and keep one sample of each."""
        count = _GROUPS_AT_ONCE * self._num_ranks
        rows = self._samples.read_block(count, count)
        num_groups, num_left = divmod(len(rows), self._num_ranks)
        groups = np.arange(self._group, self._group + num_groups + 1, dtype=np.uint64)
        within = ((draw(self._key, groups) + np.uint64(self._rank)) % np.uint64(self._num_ranks)).astype(np.int64)
        mine = np.arange(num_groups) * self._num_ranks + within[:-1]
        if num_left and self._pads:
            mine = np.append(mine, len(rows) - num_left + within[-1] % num_left)
        self._group += num_groups
        return rows.pick(mine)

    def get_state(self) -> State:
        """Return which group is next, and where the input is."""
        return {"group": self._group, "samples": self._samples.state_dict()}

    def set_state(self, state: State) -> None:
        """Go to a group."""
        self._group = state["group"]
        self._samples.load_state_dict(state["samples"])
