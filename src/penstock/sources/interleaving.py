"""Several shards read side by side, a few rows of each in turn; and one rank's share of what all of them read."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from penstock.errors import ResumeError
from penstock.order.keys import draw, fold
from penstock.order.state_fields import COUNT, refuse
from penstock.sources.columns import pick_rows
from penstock.sources.iterators import SampleIterator, State
from penstock.sources.pieces import PieceIterator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.order.state_fields import Fields
    from penstock.sources.columns import Rows
    from penstock.sources.iterators import PositionAfter
    from penstock.sources.pieces import Piece, PieceReading

_GROUPS_AT_ONCE = 64


class InterleavedIterator(SampleIterator):
    """Reads some pieces side by side: so many rows of each in turn; where one ends, the next takes its place.

    Args:
        pieces: What to read.
        reading: How they are read; the order does not depend on it.
        num_open: How many are read side by side.
        rows_in_turn: Rows of each before it is the next one's turn; None where only one is open: any number.
    """

    state_fields: ClassVar[Fields] = {"next": COUNT, "turn": COUNT, "open": [{"piece": COUNT}]}

    def __init__(
        self, pieces: Sequence[Piece], reading: PieceReading, *, num_open: int, rows_in_turn: int | None
    ) -> None:
        super().__init__()
        self._pieces, self._reading = pieces, reading
        self._num_open, self._rows_in_turn = num_open, rows_in_turn
        self._next = 0  # piece to open
        self._turn = 0
        self._open: list[tuple[int, PieceIterator]] = []  # with the number of the piece

    def close(self) -> None:
        """Close all shards."""
        for _, rows in self._open:
            rows.close()

    def _read_chunk(self) -> Rows:
        while True:
            while len(self._open) < self._num_open and self._next < len(self._pieces):
                self._open.append(self._open_next())
            if not self._open:
                return []
            self._turn %= len(self._open)
            _, current = self._open[self._turn]
            taken = current.read_rows() if self._rows_in_turn is None else current.take_rows(self._rows_in_turn)
            if len(taken):
                self._turn += self._rows_in_turn is not None
                return taken
            current.close()
            if self._next < len(self._pieces):
                self._open[self._turn] = self._open_next()
            else:
                del self._open[self._turn]

    def _open_next(self) -> tuple[int, PieceIterator]:
        number, self._next = self._next, self._next + 1
        return number, PieceIterator(self._pieces[number], self._reading)

    def _position(self) -> State:
        return {
            "next": self._next,
            "turn": self._turn,
            "open": [{"piece": number, **rows.state_dict()} for number, rows in self._open],
        }

    def _positions_in_chunk(self, start: State) -> PositionAfter:
        if self._rows_in_turn is not None:
            return super()._positions_in_chunk(start)
        [(number, rows)] = self._open
        place, after = {"next": self._next, "turn": self._turn}, rows.positions_of(len(self._chunk))
        return lambda given: {**place, "open": [{"piece": number, **after(given)}]}

    def _seek(self, position: State) -> None:
        self.close()
        numbers = {state["piece"] for state in position["open"]}
        if max([position["next"], *(number + 1 for number in numbers)]) > len(self._pieces):
            raise ResumeError("the state belongs to a source with more shards than this one")
        if not len(numbers) == len(position["open"]) <= self._num_open:
            raise refuse("open", sorted(numbers), f"at most {self._num_open} different shards")
        self._next, self._turn = position["next"], position["turn"]
        self._open = [self._reopen(dict(state)) for state in position["open"]]

    def _reopen(self, state: State) -> tuple[int, PieceIterator]:
        number = state.pop("piece")
        rows = PieceIterator(self._pieces[number], self._reading, is_at_beginning=False)
        rows.load_state_dict(state)
        return number, rows


class SplitIterator(SampleIterator):
    """Every so many-th sample, for one of several ranks that all read the same: each gets as many as the others.

    Which one of a group changes from group to group, so that no rank sees only one side of what alternates.
    """

    state_fields: ClassVar[Fields] = {"group": COUNT, "samples": dict}

    def __init__(self, samples: SampleIterator, *, rank: int, num_ranks: int, pads: bool, seed: int) -> None:
        super().__init__()
        self._samples, self._rank, self._num_ranks, self._pads = samples, rank, num_ranks, pads
        self._key, self._group = fold("split", seed), 0

    def close(self) -> None:
        """Close the input."""
        self._samples.close()

    def _read_chunk(self) -> Rows:
        rows = self._samples.take_rows(_GROUPS_AT_ONCE * self._num_ranks)
        num_groups, num_left = divmod(len(rows), self._num_ranks)
        groups = np.arange(self._group, self._group + num_groups + 1, dtype=np.uint64)
        within = ((draw(self._key, groups) + np.uint64(self._rank)) % np.uint64(self._num_ranks)).astype(np.int64)
        mine = np.arange(num_groups) * self._num_ranks + within[:-1]
        if num_left and self._pads:
            mine = np.append(mine, len(rows) - num_left + within[-1] % num_left)
        self._group += num_groups
        return pick_rows(rows, mine)

    def _position(self) -> State:
        return {"group": self._group, "samples": self._samples.state_dict()}

    def _seek(self, position: State) -> None:
        self._group = position["group"]
        self._samples.load_state_dict(position["samples"])
