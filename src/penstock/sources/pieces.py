"""Some rows of a shard, the next of which are read while the last are used; and which of them a rank reads."""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from penstock.order.state_fields import COUNT, refuse
from penstock.sources.columns import join_rows, to_samples
from penstock.sources.iterators import SampleIterator, State, position_in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    from penstock.order.state_fields import Fields
    from penstock.sources.columns import Rows
    from penstock.sources.iterators import PositionAfter

_LONGEST_S = 0.05  # that rows are collected before they are handed on


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


@dataclass(frozen=True, slots=True)
class PieceReading:
    """How pieces are read: `open_at` opens a shard at a row, and at least so many rows are read together.

    The next ones are read in the executor while the last ones are used; without one, when they are needed. If
    `makes_samples`, whoever reads also makes samples of columns.
    """

    open_at: Callable[[str, int], SampleIterator]
    at_least: int
    executor: Executor | None = None
    makes_samples: bool = False


class _Read(NamedTuple):
    """Rows that were read together, and what describes the positions in each part of them."""

    rows: Rows
    parts: list[tuple[int, PositionAfter]]  # with how many of the rows come before
    end: State | None  # where the shard was after them, before anybody knew whether more would come


class PieceIterator(SampleIterator):
    """The rows of a piece. A position is that of the shard, and how many rows are left of the piece.

    How many rows were read together depends on how long it took, so positions do not tell.
    """

    state_fields: ClassVar[Fields] = {"rows": dict, "left?": COUNT}

    def __init__(self, piece: Piece, reading: PieceReading, *, is_at_beginning: bool = True) -> None:
        super().__init__()
        self._piece, self._reading = piece, reading
        # Where a state will be loaded, there is no use in finding the first row.
        self._rows = reading.open_at(piece.shard, piece.row if is_at_beginning else 0)
        self._left = piece.num_rows  # after those that are being read
        self._ahead: Future[_Read] | None = None
        self._end: State | None = None  # of the chunk, in the shard; None before the first
        self._parts: list[tuple[int, PositionAfter]] = []  # of the chunk
        if is_at_beginning:
            self._start_reading()

    def close(self) -> None:
        """Close the shard, unless a thread is in it, which lets go of it when it has its rows."""
        if self._ahead is None or self._ahead.cancel() or self._ahead.done():
            self._rows.close()

    def _read_chunk(self) -> Rows:
        chunk, self._parts, end = self._read() if self._ahead is None else self._ahead.result()
        self._ahead, self._end = None, self._end if end is None else end
        if self._left is not None:
            self._left -= len(chunk)
        if len(chunk):
            self._start_reading()
        return chunk

    def _start_reading(self) -> None:
        if self._reading.executor is not None and self._left != 0:
            self._end = self._position()["rows"]
            self._ahead = self._reading.executor.submit(self._read)

    def _read(self) -> _Read:
        """Read a few chunks; fewer if they take long, so that whoever waits for the first rows gets them."""
        parts: list[Rows] = []
        positions: list[tuple[int, PositionAfter]] = []
        end: State | None = None
        count, deadline = 0, time.perf_counter() + _LONGEST_S
        left = sys.maxsize if self._left is None else self._left
        while count < min(left, self._reading.at_least) and not (parts and time.perf_counter() > deadline):
            try:
                part = self._rows.read_rows(1, left - count)
            except Exception:
                if not parts:
                    raise
                break  # it comes again after these
            if not len(part):
                break
            parts.append(to_samples(part) if self._reading.makes_samples else part)
            after = self._rows.positions_of(len(part))
            positions.append((count, partial(_position_after, after, None if self._left is None else left - count)))
            count, end = count + len(part), self._rows.state_dict()
        return _Read(join_rows(parts), positions, end)

    def _position(self) -> State:
        return {"rows": self._rows.state_dict() if self._end is None else self._end, "left": self._left}

    def _positions_in_chunk(self, start: State) -> PositionAfter:  # noqa: ARG002
        return partial(position_in_parts, self._parts)

    def _seek(self, position: State) -> None:
        if self._ahead is not None and not self._ahead.cancel() and not self._ahead.done():
            self._rows = self._reading.open_at(self._piece.shard, 0)  # a thread is in the other
        self._ahead = None
        left, most = position.get("left"), self._piece.num_rows
        if (left is None) != (most is None) or (left or 0) > (most or 0):
            raise refuse("left", left, f"a part of {most} rows")
        self._rows.load_state_dict(position["rows"])
        self._end = self._rows.state_dict()
        self._left = left


def _position_after(after: PositionAfter, left: int | None, given: int) -> State:
    return {"rows": after(given), "left": None if left is None else left - given}
