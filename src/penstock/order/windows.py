"""The native order: shards in random sequence, lanes, and in each lane a conveyor of shuffled windows.

About as many shards as asked for are open at any time, they come and go a few at a time, and only a few
windows are ever in memory. Everything follows from the shard lengths; nothing grows with the number of
samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ConfigError
from penstock.order.conveyor import CHUNK_SIZE, Lane, Layout, Pace, Slices
from penstock.order.id_spans import IdSpans
from penstock.order.keys import hash_key, sort_groups
from penstock.order.lanes import Chunk, Ids, read_lanes
from penstock.order.lru import LRU
from penstock.order.spread import rows_before, rows_of_part

if TYPE_CHECKING:
    from penstock.types import Int64Array

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
