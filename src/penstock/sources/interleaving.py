"""Several shards read side by side, a few rows of each in turn; and which rows of which shards a rank reads."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ResumeError
from penstock.order.keys import draw, fold
from penstock.sources.columns import cut_rows, pick_rows
from penstock.sources.iterators import SampleIterator, State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    from penstock.sources.columns import Rows


_GROUPS_AT_ONCE = 64
_ROWS_AT_LEAST = 256  # fewer are not worth a thread's while


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a shard: from the first on, to the end or as many as are counted."""

    shard: str
    row: int = 0
    num_rows: int | None = None


def divide(names: Sequence[str], lengths: Sequence[int], *, rank: int, num_ranks: int, pads: bool) -> list[Piece]:
    """Give the rows that a rank reads, where shards lie end to end: the same number on every rank.

    What is left over is read by nobody, or, if it `pads`, the last ranks begin again with the first rows.
    """
    total = sum(lengths)
    share = -(-total // num_ranks) if pads else total // num_ranks
    ends = list(accumulate(lengths))
    pieces: list[Piece] = []
    at, left = rank * share, share
    while left and total:
        at %= total
        number = bisect_right(ends, at)
        row = at - (ends[number] - lengths[number])
        count = min(left, lengths[number] - row)
        pieces.append(Piece(names[number], row, count))
        at, left = at + count, left - count
    return pieces


class _Open:
    """A piece that is being read."""

    def __init__(self, number: int, samples: SampleIterator, left: int | None) -> None:
        self.number, self.samples, self.left = number, samples, left
        # What is being read ahead, and where it begins.
        self.ahead: Future[Rows] | None = None
        self.ahead_start: State | None = None

    def start_reading(self, executor: Executor, count: int | None) -> None:
        self.ahead_start = self.samples.state_dict()
        self.ahead = executor.submit(self._read, count)

    def take(self, count: int | None) -> Rows:
        taken = self._read(count) if self.ahead is None else self.ahead.result()
        self.ahead = self.ahead_start = None
        if self.left is not None:
            taken = cut_rows(taken, 0, self.left)
            self.left -= len(taken)
        return taken

    def state(self) -> State:
        samples = self.samples.state_dict() if self.ahead_start is None else self.ahead_start
        return {"piece": self.number, "left": self.left, "samples": samples}

    def _read(self, count: int | None) -> Rows:
        if count is None:
            return self.samples.read_rows(_ROWS_AT_LEAST)
        return self.samples.take_rows(count if self.left is None else min(count, self.left))


class InterleavedIterator(SampleIterator):
    """Reads some pieces side by side: so many rows of each in turn; where one ends, the next takes its place.

    Args:
        pieces: What to read.
        open_at: Opens a shard at a row.
        num_open: How many are read side by side.
        rows_in_turn: Rows of each before it is the next one's turn; None where only one is open: any number.
        executor: Where rows are read ahead, for each open piece; the order does not depend on it.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        open_at: Callable[[str, int], SampleIterator],
        *,
        num_open: int,
        rows_in_turn: int | None,
        executor: Executor | None = None,
    ) -> None:
        super().__init__()
        self._pieces, self._open_at = pieces, open_at
        self._num_open, self._rows_in_turn, self._executor = num_open, rows_in_turn, executor
        self._next = 0  # piece to open
        self._turn = 0
        self._open: list[_Open] = []

    def close(self) -> None:
        """Close all shards that are not just being read."""
        for each in self._open:
            if each.ahead is not None and not each.ahead.cancel() and not each.ahead.done():
                continue  # a thread is in it, and lets go of it when it has its rows
            each.samples.close()

    def _read_chunk(self) -> Rows:
        while True:
            while len(self._open) < self._num_open and self._next < len(self._pieces):
                self._open.append(self._open_piece(self._next))
                self._next += 1
            if not self._open:
                return []
            self._turn %= len(self._open)
            current = self._open[self._turn]
            taken = current.take(self._rows_in_turn)
            if len(taken):
                if self._executor is not None:
                    current.start_reading(self._executor, self._rows_in_turn)
                self._turn += 1
                return taken
            current.samples.close()
            if self._next < len(self._pieces):
                self._open[self._turn] = self._open_piece(self._next)
                self._next += 1
            else:
                del self._open[self._turn]

    def _open_piece(self, number: int) -> _Open:
        piece = self._pieces[number]
        opened = _Open(number, self._open_at(piece.shard, piece.row), piece.num_rows)
        if self._executor is not None:
            opened.start_reading(self._executor, self._rows_in_turn)
        return opened

    def _position(self) -> State:
        return {"next": self._next, "turn": self._turn, "open": [each.state() for each in self._open]}

    def _seek(self, position: State) -> None:
        self.close()
        if position["next"] > len(self._pieces):
            raise ResumeError("the state belongs to a source with more shards than this one")
        self._next, self._turn = position["next"], position["turn"]
        self._open = [self._reopen(state) for state in position["open"]]

    def _reopen(self, state: State) -> _Open:
        opened = _Open(state["piece"], self._open_at(self._pieces[state["piece"]].shard, 0), state["left"])
        opened.samples.load_state_dict(state["samples"])
        return opened


class SplitIterator(SampleIterator):
    """Every so many-th sample, for one of several ranks that all read the same: each gets as many as the others.

    Which one of a group changes from group to group, so that no rank sees only one side of what alternates.
    """

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
