"""Orders without shuffling: one stream in its stored order, and a mix whose streams are laid end to end."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ResumeError
from penstock.order.id_spans import IdSpans
from penstock.order.keys import draw, hash_key
from penstock.order.lanes import Chunk, lane_length, lane_start, read_lanes
from penstock.order.lru import LRU

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.order.mix import Version
    from penstock.order.streams import StreamOrder
    from penstock.types import Int64Array

_CHUNK_SIZE = 1 << 16


class Sequential:
    """One stream in stored order, cut in lanes: with one lane, position p is sample p."""

    def __init__(
        self, lengths: Int64Array, *, seed: int = 0, stream: str = "", num_lanes: int = 1, window: int = 1
    ) -> None:
        del seed, stream, window  # what shuffling orders need
        self._spans = IdSpans(lengths)
        self.num_samples = self._spans.num_samples
        self.num_lanes = num_lanes

    def ids(self, epoch: int, pass_id: int, positions: range) -> Int64Array:
        """Return the ids at evenly spaced positions; every pass is alike."""
        del epoch, pass_id
        numbers = np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
        if self.num_lanes == 1:
            return numbers
        places, lanes = np.divmod(numbers, self.num_lanes)
        share, rest = divmod(self.num_samples, self.num_lanes)
        return lanes * share + np.minimum(lanes, rest) + places

    def shards(self, epoch: int, pass_id: int, positions: range) -> tuple[Int64Array, Int64Array]:
        """Return the shards that evenly spaced positions need, and where each is first needed, soonest first."""
        del epoch, pass_id
        turns = self.num_lanes // math.gcd(self.num_lanes, positions.step)
        shards, firsts = [], []
        for first in positions[:turns]:
            place, lane = divmod(first, self.num_lanes)
            start = lane_start(self.num_samples, self.num_lanes, lane)
            end = start + min(positions[-1] // self.num_lanes + 1, lane_length(self.num_samples, self.num_lanes, lane))
            here = np.arange(self._spans.shard_of(start + place), self._spans.shard_of(end - 1) + 1, dtype=np.int64)
            places = np.maximum(self._spans.starts[here] - start, place)
            shards.append(here)
            firsts.append(places * self.num_lanes + lane)
        joined, needed = np.concatenate(shards), np.concatenate(firsts)
        order = np.argsort(needed, kind="stable")
        return joined[order], needed[order]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """A run of the end-to-end list that comes from one stream: its numbers from `first` on."""

    name: str
    first: int
    count: int
    planned: int  # how many samples the stream gives to the epoch in all


class EndToEnd:
    """Streams one after the other, repeats in place; a partial pass is drawn anew each epoch."""

    def __init__(
        self,
        streams: Sequence[StreamOrder],
        *,
        num_lanes: int,
        seed: int,
        versions_of: Callable[[int], Sequence[Version]],
    ) -> None:
        self._streams = {stream.name: stream for stream in streams}
        self._num_lanes, self._seed, self._versions_of = num_lanes, seed, versions_of
        self._epochs: LRU[tuple[list[_Stretch], list[int]]] = LRU(2)

    def size(self, epoch: int) -> int:
        """Count the positions of an epoch."""
        _, ends = self._stretches(epoch)
        return ends[-1] if ends else 0

    def ids(self, epoch: int, positions: range) -> Int64Array:
        """Return the ids at evenly spaced positions of an epoch."""
        stretches, ends = self._stretches(epoch)
        size = ends[-1]

        def chunk_at(lane: int, place: int) -> Chunk:
            begin = lane_start(size, self._num_lanes, lane) + place
            num_asked = min(_CHUNK_SIZE, positions[-1] // self._num_lanes + 1 - place)
            end = begin + min(num_asked, lane_length(size, self._num_lanes, lane) - place)
            parts = []
            while begin < end:
                number = bisect_right(ends, begin)
                stop = min(end, ends[number])
                offset = ends[number] - stretches[number].count
                parts.append(self._read(epoch, stretches[number], begin - offset, stop - offset))
                begin = stop
            return place, np.concatenate(parts)

        return read_lanes(positions, self._num_lanes, chunk_at)

    def taken(self, epoch: int, versions: Sequence[Version], position: int) -> dict[str, int]:
        """Count the samples that each stream gives before a position, if an epoch is planned like this."""
        del epoch
        if self._num_lanes > 1:
            raise ResumeError(
                "the mix of an unshuffled run can change only if there is one lane: leave out num_canonical_nodes"
            )
        taken: dict[str, int] = {}
        for stretch in self._lay_out(versions):
            count = min(stretch.count, position)
            taken[stretch.name] = taken.get(stretch.name, 0) + count
            position -= count
        return taken

    def _stretches(self, epoch: int) -> tuple[list[_Stretch], list[int]]:
        """Return the stretches of an epoch, and where each ends."""

        def lay_out() -> tuple[list[_Stretch], list[int]]:
            stretches = self._lay_out(self._versions_of(epoch))
            return stretches, list(accumulate(stretch.count for stretch in stretches))

        return self._epochs(epoch, lay_out)

    def _lay_out(self, versions: Sequence[Version]) -> list[_Stretch]:
        stretches: list[_Stretch] = []
        taken: dict[str, int] = {}
        planned_before: dict[str, int] = {}
        for version, following in zip(versions, [*versions[1:], None], strict=True):
            left = None if following is None else following.start - version.start
            for segment in version.segments:
                for name, planned in zip(segment.names, segment.counts, strict=True):
                    count = planned if left is None else min(planned, left)
                    left = None if left is None else left - count
                    first = taken.get(name, 0)
                    stretch = _Stretch(name=name, first=first, count=count, planned=first + planned)
                    self._check_change(stretch, planned_before.get(name, stretch.planned))
                    taken[name], planned_before[name] = first + count, stretch.planned
                    if count:
                        stretches.append(stretch)
        return stretches

    def _check_change(self, stretch: _Stretch, planned_before: int) -> None:
        """Refuse to draw a partial pass anew after some of it was handed out: samples would come twice."""
        stream = self._streams.get(stretch.name)
        if stream is None or not stretch.count or stretch.planned == planned_before:
            return
        if stretch.first > planned_before - planned_before % stream.order.num_samples:
            raise ResumeError(
                f"stream {stretch.name!r} is in the middle of a partial pass that was drawn for its old weight:"
                " change the weights of an unshuffled mix at the end of an epoch"
            )

    def _read(self, epoch: int, stretch: _Stretch, begin: int, end: int) -> Int64Array:
        stream = self._streams.get(stretch.name)
        if stream is None:  # it has left the mix, and only positions of the past ask for it
            return np.full(end - begin, -1, dtype=np.int64)
        size = stream.order.num_samples
        rest = stretch.planned % size
        whole = stretch.planned - rest
        first, last = stretch.first + begin, stretch.first + end - 1
        if first // size == last // size and last < whole:
            return np.arange(first % size, last % size + 1, dtype=np.int64) + stream.first_id
        numbers = np.arange(first, last + 1, dtype=np.int64)
        ids = numbers % size
        is_partial = numbers >= whole
        if is_partial.any():
            key = hash_key("part", self._seed, epoch, stretch.name)
            ids[is_partial] = _pick_evenly(numbers[is_partial] - whole, rest, size, key)
        return ids + stream.first_id


def _pick_evenly(indexes: Int64Array, num_picked: int, size: int, key: int) -> Int64Array:
    """Draw the given ones of `num_picked` samples out of `size`: one at random from each equal stretch."""
    first = int(indexes[0])
    whole, rest = divmod(first * size, num_picked)
    # Counted from the first index, products fit in 64 bits whatever the size.
    steps = np.arange(len(indexes) + 1, dtype=np.int64)
    bounds = whole + steps * (size // num_picked) + (rest + steps * (size % num_picked)) // num_picked
    widths = np.diff(bounds).astype(np.uint64)
    drawn = (draw(key, indexes.view(np.uint64)) >> np.uint64(32)).astype(np.float64) / 2.0**32
    return bounds[:-1] + (drawn * widths).astype(np.int64)
