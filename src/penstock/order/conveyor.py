"""The native order: shards in random sequence, lanes, and in each lane a conveyor of shuffled windows.

A lane is a run of shards. Shards enter it one bundle after the other, stay for a fixed number of windows,
and give an equal part of their rows to each. Where a window begins is a sum over the shards open in it and
a prefix sum over the shards before: no window but the one asked for is ever looked at. About as many shards as
asked for are open at any time, they come and go a few at a time, and only a few windows are ever in memory.
Everything follows from the shard lengths; nothing grows with the number of samples.

Part j of the n parts of a shard is found without listing the others. Rows are taken in tiles of as many rows as there
are parts, and every part gets one row of each tile. Which one is rotated by a hash of the tile, and parts next to each
other in time are far apart in a tile. So neighbours in a shard never share a part, parts are equal up to one row, and
each part is spread evenly over its whole shard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ConfigError
from penstock.order.id_spans import IdSpans
from penstock.order.keys import draw, hash_key, permutation, sort_groups
from penstock.order.lanes import Chunk, Ids, lane_length, lane_start, read_lanes
from penstock.order.lru import LRU

if TYPE_CHECKING:
    from penstock.order.keys import UInt64Array
    from penstock.types import Int64Array

_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_MIX_ROWS = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


def rows_before(num_rows: Int64Array, parts: Int64Array, part: Int64Array, bits: UInt64Array) -> Int64Array:
    """Count the rows in the parts before a part, for many shards at once, with random bits for each."""
    # The phase decides which parts get one row more, so that short shards do not all come early.
    phase = (bits >> np.uint64(40)).astype(np.int64) * parts >> 24
    return (part * num_rows + phase) // parts


def rows_of_part(
    num_rows: Int64Array,
    parts: Int64Array,
    part: Int64Array,
    bits: UInt64Array,
    chosen: tuple[Int64Array, Int64Array] | None = None,
) -> tuple[Int64Array, Int64Array]:
    """List the rows of one part of each shard: how many from each, and the rows, shard after shard.

    `chosen`, in the same form, picks members of the parts by their number; without it all are listed.
    """
    before = rows_before(num_rows, parts, part, bits)
    num_tiles = num_rows // parts
    if chosen is None:
        counts = rows_before(num_rows, parts, part + 1, bits) - before
        firsts = np.cumsum(counts) - counts
        members = np.arange(int(counts.sum()), dtype=np.int64)
        members -= np.repeat(firsts, counts)
        from_shard = np.flatnonzero(counts > num_tiles)
        extra = firsts[from_shard] + num_tiles[from_shard]
    else:
        counts, members = chosen
        extra = np.flatnonzero(members == np.repeat(num_tiles, counts))
        from_shard = np.repeat(np.arange(len(counts)), counts)[extra]
    is_uniform = len(parts) > 0 and bool((parts == parts[0]).all())
    width = parts[0] if is_uniform else np.repeat(parts, counts)
    rows = _rotations(members, width, np.repeat(bits, counts))
    rows += np.repeat(_offsets(parts, part, bits), counts)
    # Both summands are below the width, so one conditional subtraction is the remainder.
    np.minimum(rows, rows - width.astype(np.uint64), out=rows)
    listed = rows.view(np.int64)
    listed += members * width
    # What is left of a shard after its last whole tile goes out one row at a time.
    last = num_tiles * parts + before - part * num_tiles
    listed[extra] = last[from_shard]
    return counts, listed


def _rotations(tiles: Int64Array, width: Int64Array, bits: UInt64Array) -> UInt64Array:
    """Hash each tile of each shard to 0 … width − 1."""
    mixed = tiles.view(np.uint64) * _STRIDE
    mixed += bits
    mixed ^= mixed >> _HALF
    mixed *= _MIX_ROWS
    mixed >>= _HALF
    mixed *= width.astype(np.uint64)
    mixed >>= _HALF
    return mixed


def _offsets(parts: Int64Array, part: Int64Array, bits: UInt64Array) -> UInt64Array:
    """Return each part its own place in an unrotated tile, by a random multiplier prime to their number."""
    multiplier = 1 + ((bits & np.uint64(0xFFFFFF)).astype(np.int64) * parts >> 24)
    while True:
        shared = np.gcd(multiplier, parts) > 1
        if not shared.any():
            return (multiplier * part % parts).astype(np.uint64)
        multiplier += shared


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


_REMEMBERED_IDS = 1 << 20
# A window up to this size is shuffled whole; a larger one, which takes very unequal shards, in parts.
_MAX_WINDOW_SIZE = 4 * CHUNK_SIZE
_MAX_WINDOWS_AT_ONCE = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled:
    """A shuffled run of a lane, and the window that begins where it stops, if one does."""

    start: int
    ids: Ids
    next_window: int | None

    @property
    def stop(self) -> int:
        """Return the place after the last one."""
        return self.start + len(self.ids)


class Conveyor:
    """The native order of one stream, from nothing but its shard lengths."""

    def __init__(
        self, lengths: Int64Array, *, seed: int, stream: str = "", num_lanes: int = 1, window: int = 16
    ) -> None:
        if num_lanes < 1 or window < 1:
            raise ConfigError(f"{num_lanes} lanes with a window of {window} shards: use 1 or more of each")
        self.num_lanes, self.window = num_lanes, window
        self._seed, self._stream = seed, stream
        self._spans = IdSpans(lengths)
        num_shards = int(np.count_nonzero(np.diff(self._spans.starts)))
        mean_length = self.num_samples / max(num_shards, 1)
        # Lanes are cut within shards, so a lane may see one shard more than its share.
        self.pace = Pace.fit(window, -(-num_shards // num_lanes) + 1, mean_length)
        window_size = mean_length * self.pace.bundle / self.pace.rate
        self._num_at_once = min(max(1, int(CHUNK_SIZE / max(window_size, 1))), _MAX_WINDOWS_AT_ONCE)
        self._layouts: LRU[Layout] = LRU(2)
        self._chunks: LRU[list[Shuffled]] = LRU(num_lanes + 2)
        self._chunks_per_lane = max(1, min(3, _REMEMBERED_IDS // (num_lanes * CHUNK_SIZE)))

    @property
    def num_samples(self) -> int:
        """Count the samples of one pass."""
        return self._spans.num_samples

    def ids(self, epoch: int, pass_id: int, positions: range) -> Int64Array:
        """Return the ids at evenly spaced positions of one pass over the samples in an epoch."""
        layout = self._layouts((epoch, pass_id), lambda: self._lay_out(epoch, pass_id))

        def chunk_at(lane: int, place: int) -> Chunk:
            kept = self._chunks((epoch, pass_id, lane), list)
            for chunk in kept:
                if chunk.start <= place < chunk.start + len(chunk.ids):
                    return chunk.start, chunk.ids
            found = self._shuffle_next(layout.lane(lane, self.pace), kept, place)
            del kept[: 1 - self._chunks_per_lane or len(kept)]
            kept.append(found)
            return found.start, found.ids

        return read_lanes(positions, self.num_lanes, chunk_at)

    def shards(self, epoch: int, pass_id: int, positions: range) -> tuple[Int64Array, Int64Array]:
        """Return the shards that evenly spaced positions need, and about where each is first needed, soonest first.

        It looks at the windows at both ends only, however far apart they are.
        """
        layout = self._layouts((epoch, pass_id), lambda: self._lay_out(epoch, pass_id))
        turns = self.num_lanes // math.gcd(self.num_lanes, positions.step)
        shards, firsts = [], []
        for first in positions[:turns]:
            lane = layout.lane(first % self.num_lanes, self.pace)
            begin = first // self.num_lanes
            end = max(begin, min(positions[-1] // self.num_lanes, lane.end - lane.begin - 1))
            opened, places = lane.opened(begin, end)
            shards.append(opened)
            firsts.append(np.maximum(places * self.num_lanes, first))
        joined, needed = np.concatenate(shards), np.concatenate(firsts)
        order = np.argsort(needed, kind="stable")
        return joined[order], needed[order]

    def _lay_out(self, epoch: int, pass_id: int) -> Layout:
        key = hash_key("layout", self._seed, epoch, self._stream, pass_id)
        return Layout(self._spans, self.num_lanes, key)

    def _shuffle_next(self, lane: Lane, kept: list[Shuffled], place: int) -> Shuffled:
        """Shuffle the run that holds a place; one that follows a kept run need not be searched for."""
        last = max(kept, key=lambda chunk: chunk.stop, default=None)
        if last and last.next_window is not None and last.stop <= place < last.stop + CHUNK_SIZE:
            following = self._shuffle(lane, last.next_window, last.stop, place)
            if place < following.stop:
                return following
        window = lane.find(place)
        return self._shuffle(lane, window, lane.start(window), place)

    def _shuffle(self, lane: Lane, window: int, start: int, place: int) -> Shuffled:
        """Shuffle some windows in a row, or, of one that is too large to hold, the part with the place."""
        taken = lane.slices(window, self._num_at_once)
        sizes = np.bincount(taken.windows, weights=taken.sizes()).astype(np.int64)
        num_windows = max(1, int(np.searchsorted(np.cumsum(sizes), _MAX_WINDOW_SIZE, side="right")))
        taken = taken.up_to(int(np.searchsorted(taken.windows, num_windows)))
        if sizes[0] > _MAX_WINDOW_SIZE:
            return self._shuffle_part(lane, window, taken, start, place)
        counts, rows = rows_of_part(taken.num_rows, taken.parts, taken.part, taken.bits)
        following = window + num_windows
        return Shuffled(
            start=start,
            ids=self._keep(taken, counts, rows, sort_groups(_window_key(lane), window, sizes[:num_windows])),
            next_window=following if following < lane.num_windows else None,
        )

    def _shuffle_part(self, lane: Lane, window: int, taken: Slices, start: int, place: int) -> Shuffled:
        """Cut a large window by the rule that cuts shards, and shuffle the part that holds a place."""
        sizes = taken.sizes()
        parts = np.full(len(sizes), -(-int(sizes.sum()) // CHUNK_SIZE), dtype=np.int64)

        def begins(part: int) -> int:
            return start + int(rows_before(sizes, parts, np.full_like(parts, part), taken.bits).sum())

        low, high = 0, int(parts[0])
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if begins(middle) <= place else (low, middle)
        chosen = rows_of_part(sizes, parts, np.full_like(parts, low), taken.bits)
        counts, rows = rows_of_part(taken.num_rows, taken.parts, taken.part, taken.bits, chosen)
        order = sort_groups(hash_key(_window_key(lane), window), low, np.array([len(rows)]))
        return Shuffled(start=begins(low), ids=self._keep(taken, counts, rows, order), next_window=None)

    def _keep(self, taken: Slices, counts: Int64Array, rows: Int64Array, order: Int64Array) -> Ids:
        """Return the ids of rows in an order, half as wide as usual where they fit: each lane keeps some of them."""
        rows += np.repeat(self._spans.starts[taken.shards] + taken.first_rows, counts)
        return rows.astype(np.uint32)[order] if self.num_samples <= 1 << 32 else rows[order]


def _window_key(lane: Lane) -> int:
    return hash_key("window", lane.layout.key, lane.begin)
