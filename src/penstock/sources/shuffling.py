"""A shuffle buffer whose state is small: what it holds follows from where it began to read.

Incoming samples form blocks, and each block is dealt at random into as many slices. A window is the first slice of the
newest block, the second of the one before, and so on, in random order. So each sample waits for a random time, at most
about twice the size of the buffer; and the content of the buffer is a function of the position: going back reads the
few blocks again that are still open.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.order.keys import fold, permutation
from penstock.sources.columns import join_rows, pick_rows
from penstock.sources.iterators import SampleIterator, State

if TYPE_CHECKING:
    from penstock.sources.columns import Rows
    from penstock.types import Sample

NUM_SLICES = 8


class ShuffledIterator(SampleIterator):
    """Shuffles samples through a buffer.

    Args:
        samples: The input.
        num_rows: The most samples that the buffer holds, on average over time and up to one block.
        num_bytes: The most bytes, if they are limited too.
        key: The randomness.
    """

    def __init__(self, samples: SampleIterator, *, num_rows: int, num_bytes: int | None = None, key: int) -> None:
        super().__init__()
        self._samples, self._key = samples, key
        # Of the block that came j windows ago, j slices are gone: all blocks together hold (slices + 1) / 2 blocks.
        self._block_rows = max(1, 2 * num_rows // (NUM_SLICES + 1))
        self._block_bytes = None if num_bytes is None else max(1, 2 * num_bytes // (NUM_SLICES + 1))
        self._window = 0
        self._blocks: deque[tuple[State, list[Rows]]] = deque()  # where each begins; its slices; oldest first
        self._oldest = 0  # number of the first of them

    def close(self) -> None:
        """Close the input and let go of all samples."""
        self._blocks.clear()
        self._samples.close()

    def _read_chunk(self) -> Rows:
        while True:
            self._read_block(self._window)
            if not any(slices for _, slices in self._blocks):
                return []
            parts: list[Rows] = []
            for number, (_, slices) in enumerate(self._blocks, start=self._oldest):
                if slices and len(slices[self._window - number]):
                    parts.append(slices[self._window - number])
                    slices[self._window - number] = []
            window = join_rows(parts)
            order = permutation(fold("window", self._key, self._window), len(window))
            self._window += 1
            self._drop_old()
            if len(window):
                return pick_rows(window, order)

    def _drop_old(self) -> None:
        """Let go of blocks that have given all their slices."""
        while self._blocks and self._oldest + NUM_SLICES <= self._window:
            self._blocks.popleft()
            self._oldest += 1

    def _read_block(self, number: int) -> None:
        """Read a block and deal it into slices; after the end of the input, one of nothing."""
        start = self._samples.state_dict()
        rows = self._samples.take_rows(self._block_rows) if self._block_bytes is None else self._take_bytes()
        order = permutation(fold("block", self._key, number), len(rows))
        slices = [pick_rows(rows, part) for part in np.array_split(order, NUM_SLICES)] if len(rows) else []
        self._blocks.append((start, slices))

    def _take_bytes(self) -> list[Sample]:
        rows: list[Sample] = []
        num_bytes = 0
        while len(rows) < self._block_rows and num_bytes < (self._block_bytes or 0):
            sample = next(self._samples, None)
            if sample is None:
                break
            rows.append(sample)
            num_bytes += size_of(sample)
        return rows

    def _position(self) -> State:
        start = self._blocks[0][0] if self._blocks else self._samples.state_dict()
        return {"window": self._window, "oldest": self._oldest, "samples": start}

    def _seek(self, position: State) -> None:
        self._blocks.clear()
        self._samples.load_state_dict(position["samples"])
        self._window, self._oldest = position["window"], position["oldest"]
        for number in range(self._oldest, self._window):
            self._read_block(number)
            for given in range(self._window - number):
                if self._blocks[-1][1]:
                    self._blocks[-1][1][given] = []


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
