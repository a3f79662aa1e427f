"""The samples of one stream, numbered pass after pass → ids."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock.order.lru import LRU

if TYPE_CHECKING:
    from penstock.order.base import Order
    from penstock.types import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOrder:
    """One stream: its name, its own order, and the id of its first sample in the dataset."""

    name: str
    order: Order
    first_id: int

    def spaced(self, epoch: int, numbers: range) -> Int64Array:
        """Return the ids of evenly spaced samples."""
        size, parts = self.order.num_samples, []
        while numbers:
            pass_id = numbers.start // size
            begin = pass_id * size
            num_here = len(range(numbers.start, min(numbers.stop, begin + size), numbers.step))
            here = numbers[:num_here]
            parts.append(self.order.ids(epoch, pass_id, range(here.start - begin, here.stop - begin, here.step)))
            numbers = numbers[num_here:]
        if len(parts) == 1:
            return parts[0] + self.first_id if self.first_id else parts[0]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts]) + self.first_id

    def mostly_spaced(self, epoch: int, numbers: Int64Array, step: int) -> Int64Array:
        """Return the ids of samples that are mostly `step` apart, evenly spaced ones at once."""
        passes, places = np.divmod(numbers, self.order.num_samples)
        is_break = (np.diff(places) != step) | (np.diff(passes) != 0)
        ids = np.empty(len(numbers), dtype=np.int64)
        for begin, end in pairwise([0, *(np.flatnonzero(is_break) + 1).tolist(), len(numbers)]):
            if begin < end:
                first = int(places[begin])
                spaced = range(first, first + (end - begin) * step, step)
                ids[begin:end] = self.order.ids(epoch, int(passes[begin]), spaced)
        ids += self.first_id
        return ids


class ScatteredIds:
    """Samples of streams that lie anywhere among others that are asked for soon: whole blocks are read, and kept.

    It keeps up to so many ids.
    """

    def __init__(self, limit: int) -> None:
        self._blocks: LRU[Int64Array] = LRU(limit)

    def ids(self, epoch: int, stream: StreamOrder, numbers: Int64Array, block_size: int) -> Int64Array:
        """Return the ids of any samples of a stream, out of blocks of so many."""
        size, pieces = stream.order.num_samples, []
        done = 0
        while done < len(numbers):
            pass_id, place = divmod(int(numbers[done]), size)
            first = pass_id * size + place - place % block_size
            block = range(first, min(first + block_size, (pass_id + 1) * size))
            num_here = _length_within(numbers[done:], block)
            read = self._block(epoch, stream, pass_id, range(first - pass_id * size, block.stop - pass_id * size))
            pieces.append(read[numbers[done : done + num_here] - first])
            done += num_here
        return np.concatenate(pieces) + stream.first_id

    def _block(self, epoch: int, stream: StreamOrder, pass_id: int, places: range) -> Int64Array:
        key = (epoch, stream.name, pass_id, places)
        return self._blocks(key, lambda: stream.order.ids(epoch, pass_id, places), weight=len(places))


def _length_within(numbers: Int64Array, block: range) -> int:
    """Count the numbers before the first one that is not in a block."""
    is_outside = (numbers < block.start) | (numbers >= block.stop)
    end = int(is_outside.argmax())
    return end if is_outside[end] else len(numbers)
