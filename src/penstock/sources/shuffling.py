"""A shuffle buffer that mixes like a reservoir of its size, and whose state is small.

A reservoir of n samples gives one of them at random whenever it takes one. So a sample leaves it after each step with a
chance of 1 in n, and how long it stays is all the randomness there is. Here the stay of each sample is drawn when it
comes, and samples leave in the order of the times at which their stays end; the first n are there from the beginning.
Nothing depends on how many are read at once, and what the buffer holds follows from where the oldest of them begin:
stays end after about four times the size of the buffer, so going back reads no more than that again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.blocks.block import Block, join_blocks
from penstock.blocks.stage import counted, resume
from penstock.order.keys import draw
from penstock.order.state_fields import COUNT, check_fields, refuse

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.stage import OpenStage, Position, State
    from penstock.types import Int64Array, Sample

# Stays are drawn in steps: in each of the first a sample leaves with a chance of 1 in 8. Those that are still there are
# spread evenly over some more, so that all of them stay as long on average as they would, and none for ever.
_CHANCE, _EARLY_STEPS, _LATE_STEPS = 8, 16, 15
_MEAN_STEPS = _CHANCE - 0.5
_ONE = 1 << 32
_FIELDS = {"time": COUNT, "row": COUNT, "come": COUNT, "samples": dict}
_LONGEST_STAY = 16  # of any sample, in sizes of the buffer, and more than that
# So much of the buffer is read at once, but not fewer samples; the order does not depend on it.
_PARTS, _FEWEST_AT_ONCE = 4, 32


def _chances() -> npt.NDArray[np.uint64]:
    """Return the chances, of 2³², that a stay is over after each number of steps."""
    left = [_ONE]
    for _ in range(_EARLY_STEPS):
        left.append(left[-1] - left[-1] // _CHANCE)
    left += [left[-1] * late // _LATE_STEPS for late in range(_LATE_STEPS - 1, 0, -1)]
    return np.array([_ONE - each for each in left[1:]], dtype=np.uint64)


_IS_OVER = _chances()


@dataclass(slots=True)
class _Buffered:
    """Rows that were read together, by the times at which they leave."""

    rows: Block
    times: npt.NDArray[np.float64]
    places: Int64Array  # of these rows, among those that were read together
    first: int  # row of the buffer
    comes: Int64Array  # what had come before each of them, in the order in which they were read
    after: PositionAfter
    num_given: int = 0

    def take(self, time: int) -> tuple[Block, npt.NDArray[np.float64]]:
        """Take the rows that leave before a time; memory of those that were taken is given back soon."""
        begin, end = self.num_given, int(np.searchsorted(self.times, time))
        taken = self.rows.cut(begin, end), self.times[begin:end]
        self.num_given = end
        if end == len(self.times):
            self.rows = Block()
        elif 3 * end > len(self.times):
            self.rows = self.rows.pick(np.arange(end, len(self.times)))
            self.times, self.places, self.num_given = self.times[end:], self.places[end:], 0
        return taken

    @property
    def is_over(self) -> bool:
        """Whether all rows have left."""
        return self.num_given == len(self.times)

    def oldest(self, time: int) -> Position:
        """Return what describes the position of the first row, in the order of reading, that has not left."""
        place = int(self.places[self.num_given :].min())
        return partial(_place, time, self.first + place, int(self.comes[place]), partial(self.after, place))


class ShuffledStage:
    """Shuffles rows through a buffer.

    Args:
        rows: The input.
        num_rows: How many rows the buffer holds, on average; a quarter more, or 32 if it is small, while it reads.
        num_bytes: How many bytes, if they are limited too.
        key: The randomness.
    """

    def __init__(self, rows: OpenStage, *, num_rows: int, num_bytes: int | None = None, key: int) -> None:
        self._input, self._key, self._counts_bytes = rows, key, num_bytes is not None
        self._rest = Block()  # of the input
        # Time is what has come, in samples or in bytes; of bytes, a sample has no fewer than its part of the buffer.
        self._size = num_rows if num_bytes is None else max(1, num_bytes)
        self._least = 1 if num_bytes is None else -(-self._size // num_rows)
        self._at_once = max(self._size // _PARTS, min(self._size, _FEWEST_AT_ONCE * self._least))
        self._step = math.sqrt(self._size * (self._size - min(self._least, self._size))) / _MEAN_STEPS
        self._time = self._row = self._come = 0  # until when samples were given; what has come, in samples and in size
        self._blocks: list[_Buffered] = []  # oldest first
        self._is_over = False

    def close(self) -> None:
        """Close the input and let go of all samples."""
        self._blocks, self._is_over = [], True
        self._input.close()

    def next(self) -> Block:
        """Return the rows that leave next."""
        start = self._position()
        while True:
            self._time += self._at_once
            self._read_until(self._time)
            self._blocks = [block for block in self._blocks if not block.is_over]
            if not self._blocks:
                return Block()
            taken = [block.take(self._time) for block in self._blocks]
            parts = [rows for rows, _ in taken if len(rows)]
            if parts:
                order = np.argsort(np.concatenate([times for _, times in taken]), kind="stable")
                return counted(join_blocks(parts).pick(order), start, self._position())
            # Large samples are far apart in time.
            soonest = min(float(block.times[block.num_given]) for block in self._blocks)
            self._time = max(self._time, int(soonest) // self._at_once * self._at_once)

    def _read_until(self, time: int) -> None:
        """Read all rows that have come before a time."""
        while not self._is_over and self._come < time + self._size:
            come = self._come
            rows, ends = self._take(min(self._at_once, time + self._size - come))
            self._is_over = not len(rows)
            if self._is_over:
                return
            assert rows.after is not None  # noqa: S101
            times = self._leave(ends)
            order = np.argsort(times, kind="stable")
            comes = np.concatenate([[come], ends[:-1]])
            self._blocks.append(_Buffered(rows.pick(order), times[order], order, self._row, comes, rows.after))
            self._row, self._come = self._row + len(rows), int(ends[-1])

    def _take(self, amount: int) -> tuple[Block, Int64Array]:
        """Take so much of the input, less only where it ends: rows, and what has come with each of them."""
        parts: list[Block] = []
        ends = [self._come]
        left = amount
        while left > 0:
            rows = self._rest if len(self._rest) else self._input.next()
            if not len(rows):
                break
            num_rows = self._count_bytes(rows.samples(), ends, self._come + amount) if self._counts_bytes else left
            part, self._rest = rows.split(num_rows)
            parts.append(part)
            left = self._come + amount - ends[-1] if self._counts_bytes else left - len(part)
        if self._counts_bytes:
            return join_blocks(parts), np.array(ends[1:], dtype=np.int64)
        return join_blocks(parts), np.arange(self._come + 1, self._come + 1 + amount - left, dtype=np.int64)

    def _count_bytes(self, samples: list[Sample], ends: list[int], most: int) -> int:
        """Add what has come with each sample, up to one where so much has; return how many these are."""
        for number, sample in enumerate(samples, start=1):
            ends.append(ends[-1] + max(self._least, size_of(sample)))
            if ends[-1] >= most:
                return number
        return len(samples)

    def _leave(self, ends: Int64Array) -> npt.NDArray[np.float64]:
        """Draw when samples leave. All of this is exact to the bit on every machine, as orders have to be."""
        bits = draw(self._key, np.arange(self._row, self._row + len(ends), dtype=np.uint64))
        steps = np.searchsorted(_IS_OVER, bits >> np.uint64(32), side="right")
        stays = (steps + (bits & np.uint64(_ONE - 1)) / _ONE) * self._step
        times: npt.NDArray[np.float64] = np.maximum(ends - self._size, 0) + stays
        return times

    def get_state(self) -> State:
        """Return where the oldest row of the buffer is, and until when rows were given."""
        return self._position()()

    def _position(self) -> Position:
        oldest = next((block for block in self._blocks if not block.is_over), None)
        if oldest is not None:
            return oldest.oldest(self._time)
        after = self._rest.after
        samples = partial(dict, self._input.get_state()) if after is None else partial(after, 0)
        return partial(_place, self._time, self._row, self._come, samples)

    def set_state(self, state: State) -> None:
        """Fill the buffer as it was."""
        check_fields(state, _FIELDS, "an iterator over shuffled samples")
        time, come = state["time"], state["come"]
        if time - come > _LONGEST_STAY * (self._size + self._at_once):
            raise refuse("time", time, f"one soon after {come}")
        self._blocks, self._is_over = [], False
        self._rest = resume(self._input, state["samples"])
        self._time, self._row, self._come = time, state["row"], come
        if self._time:
            self._read_until(self._time)
        for block in self._blocks:
            block.take(self._time)


def _place(time: int, row: int, come: int, samples: Position) -> State:
    return {"time": time, "row": row, "come": come, "samples": samples()}


def size_of(value: Any) -> int:
    """Estimate the bytes of a sample: of its text, bytes and arrays, and a little for everything."""
    if isinstance(value, dict):
        return 64 + sum(size_of(each) + 64 for each in value.values())
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], int | float):
            return 40 * len(value)
        return 64 + sum(map(size_of, value))
    if isinstance(value, np.ndarray):
        return value.nbytes + 64
    return len(value) + 48 if isinstance(value, str | bytes | bytearray | memoryview) else 32
