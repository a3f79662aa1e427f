"""The conveyor as arithmetic: which rows of which shards are in which window of a lane.

A lane is a run of shards. Shards enter it one bundle after the other, stay for a fixed number of windows,
and give an equal part of their rows to each. Where a window begins is a sum over the shards open in it and
a prefix sum over the shards before: no window but the one asked for is ever looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.order.keys import draw, permutation
from penstock.order.lanes import lane_length, lane_start
from penstock.order.spread import rows_before

if TYPE_CHECKING:
    from penstock.order.id_spans import IdSpans
    from penstock.order.keys import UInt64Array
    from penstock.types import Int64Array

# Samples shuffled in one go: enough to amortise numpy's cost per call, few enough to stay in cache.
CHUNK_SIZE = 1 << 15
# Shards enter in bundles of this part of those open, so that they come and go a few at a time. Shards with
# few samples enter more at a time: cut in more parts than they have samples, they would only cost time.
BUNDLES_OPEN = 32
_MIN_BUNDLES_OPEN = 8
# How many shards on either side may change places so that lanes are cut through small shards.
_CUT_REACH = 12
_MAX_MARKS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How shards move through a lane: `bundle` of them enter every `rate` windows, for `life` windows."""

    bundle: int
    rate: int
    life: int

    @classmethod
    def fit(cls, window: int, num_shards: int, mean_length: float) -> Pace:
        """Keep about `window` shards of a lane open, in windows of a size that computes fast."""
        bundle = max(1, window // max(_MIN_BUNDLES_OPEN, min(BUNDLES_OPEN, int(mean_length))))
        rate = max(1, round(mean_length * bundle / CHUNK_SIZE))
        num_bundles = -(-num_shards // bundle)
        # A lane that fits in its window needs no conveyor: let every shard live all the time.
        num_open = -(-window // bundle) if window < num_shards else 2 * num_bundles
        return cls(bundle=bundle, rate=rate, life=rate * num_open)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """What windows take: part `part` of `parts` of the given rows of some shards, window after window."""

    windows: Int64Array  # for each slice, the window it belongs to, from 0 for the first one asked for
    shards: Int64Array
    first_rows: Int64Array
    num_rows: Int64Array
    part: Int64Array
    parts: Int64Array
    bits: UInt64Array

    def sizes(self) -> Int64Array:
        """Count the rows of each slice."""
        after = rows_before(self.num_rows, self.parts, self.part + 1, self.bits)
        return after - rows_before(self.num_rows, self.parts, self.part, self.bits)

    def up_to(self, num_slices: int) -> Slices:
        """Keep the first slices only."""
        return Slices(**{name: getattr(self, name)[:num_slices] for name in self.__slots__})


class Layout:
    """The shards of one pass in their random sequence, laid end to end; lanes are cut between samples."""

    def __init__(self, spans: IdSpans, num_lanes: int, key: int) -> None:
        lengths = np.diff(spans.starts)
        num_filled = int(np.count_nonzero(lengths))
        self.key = key
        self.num_lanes = num_lanes
        self.shards = permutation(key, num_filled)
        if num_filled < len(lengths):
            self.shards = np.flatnonzero(lengths)[self.shards]
        if num_filled and lengths.max() > lengths.min(where=lengths > 0, initial=lengths.max()):
            _ease_cuts(self.shards, lengths, num_lanes)
        # One more than there are shards: shard number i of the sequence covers bounds[i] to bounds[i + 1].
        self.bounds = np.zeros(num_filled + 1, dtype=np.int64)
        np.cumsum(lengths[self.shards], out=self.bounds[1:])

    def lane(self, lane: int, pace: Pace) -> Lane:
        """Return the arithmetic of one lane."""
        num_samples, num_lanes = int(self.bounds[-1]), self.num_lanes
        begin = lane_start(num_samples, num_lanes, lane)
        end = begin + lane_length(num_samples, num_lanes, lane)
        first = int(np.searchsorted(self.bounds, begin, side="right")) - 1
        stop = int(np.searchsorted(self.bounds, end, side="left"))
        return Lane(layout=self, begin=begin, end=end, first=first, stop=stop, pace=pace)


def _ease_cuts(shards: Int64Array, lengths: Int64Array, num_lanes: int) -> None:
    """Rearrange unequal shards near the cuts between lanes, in place, so that cuts go through small ones.

    Both lanes fetch a shard that is cut. Around each cut a few shards are divided anew: those that fill up
    the lane before, the smallest of the others on the cut, the rest after, each in their random sequence.
    """
    bounds = np.concatenate([[0], np.cumsum(lengths[shards])])
    num_samples, settled = int(bounds[-1]), 0
    for lane in range(1, num_lanes):
        cut = lane_start(num_samples, num_lanes, lane)
        at = int(np.searchsorted(bounds, cut, side="right")) - 1
        low = max(settled, at - _CUT_REACH)
        if at < low:
            continue  # one large shard reaches over several lanes
        near = shards[low : at + _CUT_REACH]
        before, after = _divide(lengths[near].tolist(), cut - int(bounds[low]))
        near[:] = near[[*before, *after]]
        bounds[low + 1 : low + 1 + len(near)] = bounds[low] + np.cumsum(lengths[near])
        settled = low + len(before) + 1


def _divide(sizes: list[int], room: int) -> tuple[list[int], list[int]]:
    """Choose sizes that fill a room, large ones first; of the others, the smallest comes first."""
    before = set()
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        if sizes[number] <= room:
            before.add(number)
            room -= sizes[number]
    after = [number for number in range(len(sizes)) if number not in before]
    smallest = min(after, key=lambda number: (sizes[number], number), default=0)
    return sorted(before), sorted(after, key=lambda number: (number != smallest, number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One lane of a layout: samples [begin, end), in the shards number [first, stop) of the sequence.

    Bundle g enters at window `g · rate` and leaves `life` windows later. The first and the last half life
    are cut off, as if the conveyor had been running already: so a lane begins with many shards at once, not
    with one.
    """

    layout: Layout
    begin: int
    end: int
    first: int
    stop: int
    pace: Pace

    @property
    def lead(self) -> int:
        """Count the windows cut off at the beginning, and at the end."""
        return (self.pace.life - 1) // 2

    @property
    def num_windows(self) -> int:
        """Count the windows of the lane; some may be empty."""
        num_bundles = -(-(self.stop - self.first) // self.pace.bundle)
        return (num_bundles - 1) * self.pace.rate + self.pace.life - 2 * self.lead

    def slices(self, window: int, num_windows: int = 1) -> Slices:
        """Return what each of some windows in a row takes, from which shards."""
        pace, layout = self.pace, self.layout
        windows = np.arange(window, min(window + num_windows, self.num_windows), dtype=np.int64)[:, None]
        newest = (windows + self.lead) // pace.rate
        max_open = (-(-pace.life // pace.rate)) * pace.bundle
        numbers = self.first + (newest + 1) * pace.bundle - max_open + np.arange(max_open, dtype=np.int64)
        entry = (numbers - self.first) // pace.bundle * pace.rate - self.lead
        leaves = np.minimum(entry + pace.life, self.num_windows)
        is_open = (numbers >= self.first) & (numbers < self.stop) & (leaves > windows)
        numbers, entry, leaves = numbers[is_open], np.maximum(entry[is_open], 0), leaves[is_open]
        which = np.broadcast_to(windows, is_open.shape)[is_open]
        starts, shards = layout.bounds[numbers], layout.shards[numbers]
        first_rows = np.maximum(self.begin - starts, 0)
        return Slices(
            windows=which - window,
            shards=shards,
            first_rows=first_rows,
            num_rows=np.minimum(layout.bounds[numbers + 1], self.end) - starts - first_rows,
            part=which - entry,
            parts=leaves - entry,
            bits=draw(layout.key, shards.view(np.uint64)),
        )

    def start(self, window: int) -> int:
        """Return the place in the lane where a window begins."""
        taken = self.slices(window)
        oldest = max(0, (window + self.lead - self.pace.life) // self.pace.rate + 1)
        done = int(self.layout.bounds[self.first + oldest * self.pace.bundle]) - self.begin
        return max(done, 0) + int(rows_before(taken.num_rows, taken.parts, taken.part, taken.bits).sum())

    def find(self, place: int) -> int:
        """Return the window that holds a place: bisection over the windows in which its shard lives."""
        number = int(np.searchsorted(self.layout.bounds, self.begin + place, side="right")) - 1
        entry = (number - self.first) // self.pace.bundle * self.pace.rate - self.lead
        low, high = max(0, entry), min(entry + self.pace.life, self.num_windows)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.start(middle) <= place else (low, middle)
        return low

    def opened(self, begin: int, end: int) -> tuple[Int64Array, Int64Array]:
        """Return the shards that the places from `begin` to `end` need, and about where each is first needed."""
        window, last = self.find(begin), self.find(end)
        open_now = self.slices(window).shards
        entered = np.array([window + self.lead, last + self.lead]) // self.pace.rate
        low, high = (np.minimum(self.first + (entered + 1) * self.pace.bundle, self.stop)).tolist()
        numbers = np.arange(low, high, dtype=np.int64)
        entry = (numbers - self.first) // self.pace.bundle * self.pace.rate - self.lead
        # Where a window begins costs a little to say: over many of them, some marks to go by are enough.
        marks = sorted({*np.linspace(window, last, _MAX_MARKS).astype(np.int64).tolist()})
        starts = [self.start(mark) for mark in marks]
        places = np.interp(entry, marks, starts).astype(np.int64)
        return (
            np.concatenate([open_now, self.layout.shards[numbers]]),
            np.concatenate([np.full(len(open_now), begin, dtype=np.int64), np.clip(places, begin, end)]),
        )
