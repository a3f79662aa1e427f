"""How far each lane has got with a stream, and which sample of the stream comes next.

The samples of a stream, pass after pass, are numbered q = 0, 1, 2, …; number q is row `q // num_lanes` of
lane `q % num_lanes`. A lane takes its rows in order, so one number per lane, the rows it has taken, says all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from penstock.order.lanes import lane_length

if TYPE_CHECKING:
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
