"""Some rows of a shard, the next of which are read while the last are used; and which of them a rank reads."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from penstock.sources.columns import to_samples
from penstock.sources.iterators import SampleIterator, State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    from penstock.sources.columns import Rows


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


class PieceIterator(SampleIterator):
    """The rows of a piece. A position is where some that were read together begin, and how many of these were given."""

    def __init__(self, piece: Piece, reading: PieceReading, *, is_at_beginning: bool = True) -> None:
        super().__init__()
        self._piece, self._reading = piece, reading
        # Where a state will be loaded, there is no use in finding the first row.
        self._rows = reading.open_at(piece.shard, piece.row if is_at_beginning else 0)
        self._left = piece.num_rows  # after those that are being read
        self._ahead: Future[Rows] | None = None
        self._ahead_start: State = {}
        if is_at_beginning:
            self._start_reading()

    def close(self) -> None:
        """Close the shard, unless a thread is in it, which lets go of it when it has its rows."""
        if self._ahead is None or self._ahead.cancel() or self._ahead.done():
            self._rows.close()

    def _read_chunk(self) -> Rows:
        chunk = self._read() if self._ahead is None else self._ahead.result()
        self._ahead = None
        if self._left is not None:
            self._left -= len(chunk)
        if len(chunk):
            self._start_reading()
        return chunk

    def _start_reading(self) -> None:
        if self._reading.executor is not None and self._left != 0:
            self._ahead_start = self._here()
            self._ahead = self._reading.executor.submit(self._read)

    def _read(self) -> Rows:
        if self._left is None:
            rows = self._rows.read_rows(self._reading.at_least)
        else:
            rows = self._rows.read_rows(min(self._left, self._reading.at_least), self._left)
        return to_samples(rows) if self._reading.makes_samples else rows

    def _position(self) -> State:
        return self._here() if self._ahead is None else self._ahead_start

    def _here(self) -> State:
        return {"rows": self._rows.state_dict(), "left": self._left}

    def _seek(self, position: State) -> None:
        if self._ahead is not None and not self._ahead.cancel() and not self._ahead.done():
            self._rows = self._reading.open_at(self._piece.shard, 0)  # a thread is in the other
        self._ahead = None
        self._rows.load_state_dict(position["rows"])
        self._left = position["left"]
