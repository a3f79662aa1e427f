"""Some rows of a shard, the next of which are read while the last are used; and which of them a rank reads."""

from __future__ import annotations

import sys
from bisect import bisect_right
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from penstock.blocks.block import Block
from penstock.blocks.stage import close, resume
from penstock.order.state_fields import COUNT, check_fields, refuse
from penstock.sources.iterators import read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.stage import Stage, State
    from penstock.sources.iterators import ReadRows

_LONGEST_S = 0.05  # that rows are collected before they are handed on


@dataclass(frozen=True, slots=True)
class RowRange:
    """Some rows of a shard: from the first on, to the end or as many as are counted."""

    shard: str
    row: int = 0
    num_rows: int | None = None


def divide(names: Sequence[str], lengths: Sequence[int], *, rank: int, num_ranks: int, pads: bool) -> list[RowRange]:
    """Return the rows that a rank reads, where shards lie end to end: the same number on every rank.

    What is left over is read by nobody, or, if it `pads`, the last ranks begin again with the first rows.
    """
    total = sum(lengths)
    share = -(-total // num_ranks) if pads else total // num_ranks
    ends = list(accumulate(lengths))
    ranges: list[RowRange] = []
    at, left = rank * share, share
    while left and total:
        at %= total
        number = bisect_right(ends, at)
        row = at - (ends[number] - lengths[number])
        count = min(left, lengths[number] - row)
        ranges.append(RowRange(names[number], row, count))
        at, left = at + count, left - count
    return ranges


@dataclass(frozen=True, slots=True)
class RangeReading:
    """How ranges are read: `open_at` opens a shard at a row, and at least so many rows are read together.

    The next ones are read in the executor while the last ones are used; without one, when they are needed. If
    `makes_samples`, samples are made of columns there, too.
    """

    open_at: Callable[[str, int], Stage]
    at_least: int
    executor: Executor | None = None
    makes_samples: bool = False


class RangeStage:
    """The rows of a range. A position is that of the shard, and how many rows are left of the range."""

    def __init__(self, row_range: RowRange, reading: RangeReading, *, is_at_beginning: bool = True) -> None:
        self._range, self._reading = row_range, reading
        # Where a state will be loaded, there is no use in finding the first row.
        self._shard = reading.open_at(row_range.shard, row_range.row if is_at_beginning else 0)
        self._rest = Block()  # of the shard
        self._left = row_range.num_rows  # after those that were given
        self._ahead: Future[ReadRows] | None = None
        self._failure: Exception | None = None  # it comes after the rows that were given
        self._here = self._shard.get_state()
        if is_at_beginning:
            self._start_reading()

    def close(self) -> None:
        """Close the shard, unless a thread is in it, which lets go of it when it has its rows."""
        if self._ahead is None or self._ahead.cancel() or self._ahead.done():
            close(self._shard)

    def next(self) -> Block:
        """Read the next rows, or wait for those that are being read."""
        if self._failure is not None:
            raise self._failure
        rows, self._rest, self._failure = self._read() if self._ahead is None else self._ahead.result()
        self._ahead = None
        if not len(rows):
            if self._failure is not None:
                raise self._failure
            return rows
        assert rows.after is not None  # noqa: S101
        left = self._left
        self._here, self._left = rows.after(len(rows)), None if left is None else left - len(rows)
        self._start_reading()
        return rows.at(partial(_position_after, rows.after, left))

    def _start_reading(self) -> None:
        if self._reading.executor is not None and self._left != 0 and self._failure is None:
            self._ahead = self._reading.executor.submit(read_rows, *self._what_to_read())

    def _read(self) -> ReadRows:
        return read_rows(*self._what_to_read())

    def _what_to_read(self) -> tuple[Stage, Block, int, int, float, bool]:
        most = sys.maxsize if self._left is None else self._left
        return self._shard, self._rest, self._reading.at_least, most, _LONGEST_S, self._reading.makes_samples

    def get_state(self) -> State:
        """Return where the shard is, and how many rows are left."""
        return {"rows": self._here, "left": self._left}

    def set_state(self, state: State) -> None:
        """Go to a position in the shard."""
        check_fields(state, {"rows": dict, "left?": COUNT}, "an iterator over some rows")
        if self._ahead is not None and not self._ahead.cancel() and not self._ahead.done():
            self._shard = self._reading.open_at(self._range.shard, 0)  # a thread is in the other
        self._ahead = self._failure = None
        left, most = state.get("left"), self._range.num_rows
        if (left is None) != (most is None) or (left or 0) > (most or 0):
            raise refuse("left", left, f"a part of {most} rows")
        self._here, self._left = state["rows"], left
        self._rest = resume(self._shard, state["rows"])


def _position_after(after: PositionAfter, left: int | None, given: int) -> State:
    return {"rows": after(given), "left": None if left is None else left - given}
