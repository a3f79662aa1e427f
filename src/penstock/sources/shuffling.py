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
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.blocks.block import Block, join_blocks
from penstock.order.keys import draw
from penstock.order.state_fields import COUNT, refuse
from penstock.sources.iterators import SampleIterator

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.blocks.stage import State
    from penstock.order.state_fields import Fields
    from penstock.types import Int64Array

# Stays are drawn in steps: in each of the first a sample leaves with a chance of 1 in 8. Those that are still there are
# spread evenly over some more, so that all of them stay as long on average as they would, and none for ever.
_CHANCE, _EARLY_STEPS, _LATE_STEPS = 8, 16, 15
_MEAN_STEPS = _CHANCE - 0.5
_ONE = 1 << 32
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
    """Samples that were read together, by the times at which they leave."""

    start: State  # of the buffer before them
    rows: Block
    times: npt.NDArray[np.float64]
    num_given: int = 0

    def take(self, time: int) -> tuple[Block, npt.NDArray[np.float64]]:
        """Take the samples that leave before a time; memory of those that were taken is given back soon."""
        begin, end = self.num_given, int(np.searchsorted(self.times, time))
        taken = self.rows.cut(begin, end), self.times[begin:end]
        self.num_given = end
        if end == len(self.times):
            self.rows = Block()
        elif 3 * end > len(self.times):
            self.rows = self.rows.pick(np.arange(end, len(self.times)))
            self.times, self.num_given = self.times[end:], 0
        return taken


class ShuffledIterator(SampleIterator):
    """Shuffles samples through a buffer.

    Args:
        samples: The input.
        num_rows: How many samples the buffer holds, on average; a quarter more, or 32 if it is small, while it reads.
        num_bytes: How many bytes, if they are limited too.
        key: The randomness.
    """

    state_fields: ClassVar[Fields] = {"time": COUNT, "row": COUNT, "come": COUNT, "samples": dict}

    def __init__(self, samples: SampleIterator, *, num_rows: int, num_bytes: int | None = None, key: int) -> None:
        super().__init__()
        self._samples, self._key, self._counts_bytes = samples, key, num_bytes is not None
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
        self._samples.close()

    def next(self) -> Block:
        """Return the samples that leave next."""
        while True:
            self._time += self._at_once
            self._read_until(self._time)
            self._blocks = [block for block in self._blocks if block.num_given < len(block.times)]
            if not self._blocks:
                return Block()
            taken = [block.take(self._time) for block in self._blocks]
            parts = [rows for rows, _ in taken if len(rows)]
            if parts:
                order = np.argsort(np.concatenate([times for _, times in taken]), kind="stable")
                return join_blocks(parts).pick(order)
            # Large samples are far apart in time.
            soonest = min(float(block.times[block.num_given]) for block in self._blocks)
            self._time = max(self._time, int(soonest) // self._at_once * self._at_once)

    def _read_until(self, time: int) -> None:
        """Read all samples that have come before a time."""
        while not self._is_over and self._come < time + self._size:
            start = {"row": self._row, "come": self._come, "samples": self._samples.state_dict()}
            rows, ends = self._take(min(self._at_once, time + self._size - self._come))
            self._is_over = not len(rows)
            if self._is_over:
                return
            times = self._leave(ends)
            order = np.argsort(times, kind="stable")
            self._blocks.append(_Buffered(start, rows.pick(order), times[order]))
            self._row, self._come = self._row + len(rows), int(ends[-1])

    def _take(self, amount: int) -> tuple[Block, Int64Array]:
        """Take so much from the input: samples, and what has come with each of them."""
        if not self._counts_bytes:
            rows = self._samples.read_block(amount, amount)
            return rows, np.arange(self._come + 1, self._come + 1 + len(rows), dtype=np.int64)
        samples, ends = [], [self._come]
        while ends[-1] - self._come < amount and (sample := next(self._samples, None)) is not None:
            samples.append(sample)
            ends.append(ends[-1] + max(self._least, size_of(sample)))
        return Block(samples), np.array(ends[1:], dtype=np.int64)

    def _leave(self, ends: Int64Array) -> npt.NDArray[np.float64]:
        """Draw when samples leave. All of this is exact to the bit on every machine, as orders have to be."""
        bits = draw(self._key, np.arange(self._row, self._row + len(ends), dtype=np.uint64))
        steps = np.searchsorted(_IS_OVER, bits >> np.uint64(32), side="right")
        stays = (steps + (bits & np.uint64(_ONE - 1)) / _ONE) * self._step
        times: npt.NDArray[np.float64] = np.maximum(ends - self._size, 0) + stays
        return times

    def get_state(self) -> State:
        """Return where the oldest samples of the buffer begin, and until when they were given."""
        now = {"row": self._row, "come": self._come, "samples": self._samples.state_dict()}
        left = (block.start for block in self._blocks if block.num_given < len(block.times))
        return {"time": self._time, **next(left, now)}

    def set_state(self, state: State) -> None:
        """Fill the buffer as it was."""
        time, come = state["time"], state["come"]
        if time - come > _LONGEST_STAY * (self._size + self._at_once):
            raise refuse("time", time, f"one soon after {come}")
        self._blocks, self._is_over = [], False
        self._samples.load_state_dict(state["samples"])
        self._time, self._row, self._come = time, state["row"], come
        if self._time:
            self._read_until(self._time)
        for block in self._blocks:
            block.take(self._time)


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
