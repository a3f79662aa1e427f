"""Some rows of a shard, the next of which are read while the last are used; and which of them a rank reads."""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from penstock.blocks.block import Block, join_blocks
from penstock.order.state_fields import COUNT, refuse
from penstock.sources.iterators import SampleIterator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.stage import State
    from penstock.order.state_fields import Fields

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
    `makes_samples`, whoever reads also makes samples of columns.
    """

    open_at: Callable[[str, int], SampleIterator]
    at_least: int
    executor: Executor | None = None
    makes_samples: bool = False


class _Read(NamedTuple):
    """Rows that were read together."""

    rows: Block
    end: State | None  # where the shard was after them, before anybody knew whether more would come


class RangeIterator(SampleIterator):
    """The rows of a range. A position is that of the shard, and how many rows are left of the range.

    How many rows were read together depends on how long it took, so positions do not tell.
    """

    state_fields: ClassVar[Fields] = {"rows": dict, "left?": COUNT}

    def __init__(self, row_range: RowRange, reading: RangeReading, *, is_at_beginning: bool = True) -> None:
        super().__init__()
        self._range, self._reading = row_range, reading
        # Where a state will be loaded, there is no use in finding the first row.
        self._rows = reading.open_at(row_range.shard, row_range.row if is_at_beginning else 0)
        self._left = row_range.num_rows  # after those that are being read
        self._ahead: Future[_Read] | None = None
        self._end: State | None = None  # of the block, in the shard; None before the first
        if is_at_beginning:
            self._start_reading()

    def close(self) -> None:
        """Close the shard, unless a thread is in it, which lets go of it when it has its rows."""
        if self._ahead is None or self._ahead.cancel() or self._ahead.done():
            self._rows.close()

    def next(self) -> Block:
        """Read the next rows, or wait for those that are being read."""
        block, end = self._read() if self._ahead is None else self._ahead.result()
        self._ahead, self._end = None, self._end if end is None else end
        if self._left is not None:
            self._left -= len(block)
        if len(block):
            self._start_reading()
        return block

    def _start_reading(self) -> None:
        if self._reading.executor is not None and self._left != 0:
            self._end = self.get_state()["rows"]
            self._ahead = self._reading.executor.submit(self._read)

    def _read(self) -> _Read:
        """Read a few blocks; fewer if they take long, so that whoever waits for the first rows gets them."""
        parts: list[Block] = []
        end: State | None = None
        count, deadline = 0, time.perf_counter() + _LONGEST_S
        left = sys.maxsize if self._left is None else self._left
        while count < min(left, self._reading.at_least) and not (parts and time.perf_counter() > deadline):
            try:
                part = self._rows.read_block(1, left - count)
            except Exception:
                if not parts:
                    raise
                break  # it comes again after these
            if not len(part):
                break
            if self._reading.makes_samples:
                part.samples()
            assert part.after is not None  # noqa: S101
            parts.append(part.at(partial(_position_after, part.after, None if self._left is None else left - count)))
            count, end = count + len(part), self._rows.state_dict()
        return _Read(join_blocks(parts), end)

    def get_state(self) -> State:
        """Return where the shard is, and how many rows are left."""
        return {"rows": self._rows.state_dict() if self._end is None else self._end, "left": self._left}

    def set_state(self, state: State) -> None:
        """Go to a position in the shard."""
        if self._ahead is not None and not self._ahead.cancel() and not self._ahead.done():
            self._rows = self._reading.open_at(self._range.shard, 0)  # a thread is in the other
        self._ahead = None
        left, most = state.get("left"), self._range.num_rows
        if (left is None) != (most is None) or (left or 0) > (most or 0):
            raise refuse("left", left, f"a part of {most} rows")
        self._rows.load_state_dict(state["rows"])
        self._end = self._rows.state_dict()
        self._left = left


def _position_after(after: PositionAfter, left: int | None, given: int) -> State:
    return {"rows": after(given), "left": None if left is None else left - given}
