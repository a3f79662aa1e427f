"""The streams of a mix: how far each lane has got with a stream, which sample of it comes next, and its id.

The samples of a stream, pass after pass, are numbered q = 0, 1, 2, …; number q is row `q // num_lanes` of
lane `q % num_lanes`. A lane takes its rows in order, so one number per lane, the rows it has taken, says all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock.order.lanes import lane_length, split_passes
from penstock.order.lru import LRU

if TYPE_CHECKING:
    from penstock.order.base import Order
    from penstock.types import Int64Array


def take_from_all(rows_taken: Int64Array, indexes: Int64Array) -> Int64Array:
    """Number the samples that are taken whichever lane they are in: always the first one left."""
    left, top = _left_behind(rows_taken)
    numbers = top + indexes - len(left)
    is_behind = indexes < len(left)
    numbers[is_behind] = left[indexes[is_behind]]
    return numbers


def advance_all(rows_taken: Int64Array, count: int) -> Int64Array:
    """Count the rows taken once the first samples left are, too, whichever lane they are in."""
    left, top = _left_behind(rows_taken)
    if count < len(left):
        taken = np.bincount(left[:count] % len(rows_taken), minlength=len(rows_taken))
        return rows_taken + taken
    return lengths_of_lanes(top + count - len(left), len(rows_taken))


def lengths_of_lanes(count: int, num_lanes: int) -> Int64Array:
    """Count, for each lane, the samples numbered below `count`."""
    return np.array([lane_length(count, num_lanes, lane) for lane in range(num_lanes)], dtype=np.int64)


def _left_behind(rows_taken: Int64Array) -> tuple[Int64Array, int]:
    """List the samples that the foremost lane has passed and others have not, and the number after them."""
    num_lanes, highest = len(rows_taken), int(rows_taken.max())
    rows = np.arange(int(rows_taken.min()), highest, dtype=np.int64)[:, None]
    numbers = rows * num_lanes + np.arange(num_lanes, dtype=np.int64)
    return numbers[rows >= rows_taken], highest * num_lanes


@dataclass(slots=True)
class StreamProgress:
    """Numbers that stand for others, so that what all lanes take together is the first samples, no others.

    Lanes may end an epoch a row apart. Then the last rows of some lanes stand for the rows that others did
    not reach.
    """

    stands_for: dict[int, int] = field(default_factory=dict)

    def concerns(self, highest: int) -> bool:
        """Return whether any of the numbers up to the highest might stand for another."""
        return bool(self.stands_for) and highest >= min(self.stands_for)

    def apply(self, numbers: Int64Array) -> Int64Array:
        """Replace the numbers that stand for others."""
        if not self.concerns(int(numbers.max(initial=-1))):
            return numbers
        keys = np.array(sorted(self.stands_for), dtype=np.int64)
        places = np.minimum(np.searchsorted(keys, numbers), len(keys) - 1)
        is_exchanged = keys[places] == numbers
        if not is_exchanged.any():
            return numbers
        values = np.array([self.stands_for[int(key)] for key in keys], dtype=np.int64)
        return np.where(is_exchanged, values[places], numbers)

    def close(self, begin: Int64Array, rows_taken: Int64Array) -> StreamProgress:
        """Return the exchange of an epoch that ends with these rows taken; before `begin` all has been handed out."""
        num_lanes, count = len(rows_taken), int(rows_taken.sum())
        wanted = lengths_of_lanes(count, num_lanes)
        near = set(self.stands_for)
        for lane in range(num_lanes):
            low, high = sorted((int(rows_taken[lane]), int(wanted[lane])))
            near.update(row * num_lanes + lane for row in range(low, high))
        taken = {number for number in near if number // num_lanes < rows_taken[number % num_lanes]}
        meaning = {number: self.stands_for.get(number, number) for number in sorted(near)}
        over = [
            number
            for number in meaning
            if number in taken and meaning[number] >= count and number // num_lanes >= begin[number % num_lanes]
        ]
        under = [meaning[number] for number in meaning if number not in taken and meaning[number] < count]
        return StreamProgress({**self.stands_for, **dict(zip(over, under, strict=False))})

    def cut(self, closed: StreamProgress, rows_taken: Int64Array) -> StreamProgress:
        """Keep of a closed exchange what was used with these rows taken, when the rest is planned anew."""
        num_lanes = len(rows_taken)
        kept = dict(self.stands_for)
        for number, stand_in in closed.stands_for.items():
            meaning = kept.get(number, number)
            if number // num_lanes < rows_taken[number % num_lanes] and meaning != stand_in:
                owner = next((other for other, value in kept.items() if value == stand_in), stand_in)
                kept[number], kept[owner] = stand_in, meaning
        return StreamProgress(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOrder:
    """One stream: its name, its own order, and the id of its first sample in the dataset."""

    name: str
    order: Order
    first_id: int

    def spaced(self, epoch: int, numbers: range) -> Int64Array:
        """Return the ids of evenly spaced samples."""
        passes = split_passes(numbers, self.order.num_samples)
        parts = [self.order.ids(epoch, pass_id, here) for pass_id, here in passes]
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
            is_outside = (numbers[done:] < block.start) | (numbers[done:] >= block.stop)
            end = int(is_outside.argmax())
            num_here = end if is_outside[end] else len(numbers) - done
            read = self._block(epoch, stream, pass_id, range(first - pass_id * size, block.stop - pass_id * size))
            pieces.append(read[numbers[done : done + num_here] - first])
            done += num_here
        return np.concatenate(pieces) + stream.first_id

    def _block(self, epoch: int, stream: StreamOrder, pass_id: int, places: range) -> Int64Array:
        key = (epoch, stream.name, pass_id, places)
        return self._blocks(key, lambda: stream.order.ids(epoch, pass_id, places), weight=len(places))
