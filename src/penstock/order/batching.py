"""Batches of one stream each: whole global batches (`per_stream`) or device batches (`device_per_stream`).

What is mixed here is not samples but units, the batches that must not be mixed within. The mixing is the
same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from penstock.errors import ConfigError
from penstock.order.keys import hash_key
from penstock.order.lru import LRU
from penstock.order.mixed import EpochMix
from penstock.order.stream_progress import take_from_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.order.mix import MixedStream
    from penstock.order.mixed import Phase, Version
    from penstock.order.stream_ids import StreamOrder
    from penstock.types import Int64Array

BatchingMethod: TypeAlias = Literal["random", "stratified", "per_stream", "device_per_stream"]
BATCHING_METHODS: tuple[BatchingMethod, ...] = ("random", "stratified", "per_stream", "device_per_stream")
# Rows of units that are mixed together: enough to hold every stream's share, few enough to hold it soon.
_UNIT_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """How batches are cut: `size` samples of one stream each, `per_batch` of them in a global batch."""

    size: int
    per_batch: int
    num_lanes: int

    @property
    def batch_size(self) -> int:
        """Count the samples of a global batch."""
        return self.size * self.per_batch

    def members_at(self, positions: range) -> range:
        """Return which members of units evenly spaced positions can ask for: all, or every so many of them."""
        shared = math.gcd(positions.step, self.batch_size)
        if shared % self.per_batch:
            return range(self.size)
        return range(positions.start % shared // self.per_batch, self.size, shared // self.per_batch)

    def per_pass(self, num_samples: int) -> int:
        """Count the whole units in one pass over a stream; what does not fill one is left out."""
        return num_samples // self.num_lanes // self.size * self.num_lanes

    def count(self, name: str, num_samples: int, stream_size: int) -> int:
        """Turn a stream's samples per epoch into units per epoch."""
        per_pass = self.per_pass(stream_size)
        if num_samples and not per_pass:
            raise ConfigError(
                f"stream {name!r} has {stream_size} samples, too few for one batch of {self.size} in each of"
                f" {self.num_lanes} lanes: use smaller batches or a smaller num_canonical_nodes"
            )
        return num_samples * per_pass // stream_size if stream_size else 0


class UnitOrder:
    """Positions of an epoch → ids, with whole units of one stream each."""

    def __init__(
        self,
        streams: Sequence[StreamOrder],
        *,
        units: Units,
        seed: int,
        versions_of: Callable[[int], Sequence[Version]],
        mix_of: Callable[[int], int],
        is_shuffled: bool,
    ) -> None:
        self._streams = {stream.name: stream for stream in streams}
        self._units, self._seed = units, seed
        self._versions_of, self._mix_of, self._is_shuffled = versions_of, mix_of, is_shuffled
        self._epochs: LRU[EpochMix] = LRU(2)

    def size(self, epoch: int) -> int:
        """Count the positions of an epoch: whole global batches only."""
        return self.mix(epoch).size // self._units.per_batch * self._units.batch_size

    def mix(self, epoch: int) -> EpochMix:
        """Return the mix of an epoch, counted in units."""
        return self._epochs(epoch, lambda: self._make_epoch(epoch, self._versions_of(epoch)))

    def ids(self, epoch: int, positions: range) -> Int64Array:
        """Return the ids at evenly spaced positions of an epoch."""
        numbers = np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
        if not len(numbers):
            return numbers
        batches, slots = np.divmod(numbers, self._units.batch_size)
        places, devices = np.divmod(slots, self._units.per_batch)
        units = batches * self._units.per_batch + devices
        low = int(units.min())
        is_wanted = np.zeros(int(units.max()) + 1 - low, dtype=bool)
        is_wanted[units - low] = True
        members = self._units.members_at(positions)
        listed = self._read(epoch, np.flatnonzero(is_wanted) + low, members)
        which = np.cumsum(is_wanted)[units - low] - 1
        at_places: Int64Array = listed.ravel()[which * len(members) + places // members.step]
        return at_places

    def taken(self, epoch: int, versions: Sequence[Version], position: int) -> dict[str, int]:
        """Count the units that each stream gives before a unit, if an epoch is planned like this."""
        return self._make_epoch(epoch, versions).taken(position)

    def _make_epoch(self, epoch: int, versions: Sequence[Version]) -> EpochMix:
        return EpochMix(
            versions,
            num_lanes=self._units.num_lanes,
            block_rows=_UNIT_ROWS,
            key=hash_key("units", self._seed, self._mix_of(epoch)),
            is_shuffled=self._is_shuffled,
        )

    def _read(self, epoch: int, units: Int64Array, members: range) -> Int64Array:
        """List the ids of some members of units of the epoch, in rising order: [unit][member]."""
        mix, num_lanes = self.mix(epoch), self._units.num_lanes
        listed = np.empty((len(units), len(members)), dtype=np.int64)
        bounds = np.searchsorted(units, [*(phase.segment.start for phase in mix.phases), units[-1] + 1])
        for phase, (begin, end) in zip(mix.phases, pairwise(bounds.tolist()), strict=True):
            rows, lanes = np.divmod(units[begin:end] - phase.segment.start, num_lanes)
            for local_lane in np.flatnonzero(np.bincount(lanes)).tolist():
                mine = np.flatnonzero(lanes == local_lane)
                lane = (phase.segment.start + local_lane) % num_lanes
                for part, places in _find_rows(phase, local_lane, rows[mine]):
                    listed[begin + mine[places]] = self._read_stream(epoch, mix, phase, lane, part, members)
        return listed

    def _read_stream(
        self, epoch: int, mix: EpochMix, phase: Phase, lane: int, part: MixedStream, members: range
    ) -> Int64Array:
        """List the same for the units that a lane takes of one stream."""
        name, indexes = phase.segment.names[part.stream], np.asarray(part.indexes)
        stream, rows_taken = self._streams.get(name), phase.rows_taken[name]
        if stream is None:  # it has left the mix, and only positions of the past ask for it
            return np.full((len(indexes), len(members)), -1, dtype=np.int64)
        if phase.mixer.is_small[part.stream]:
            taken = take_from_all(rows_taken, indexes)
        else:
            taken = (rows_taken[lane] + indexes) * self._units.num_lanes + lane
        return self._read_units(epoch, stream, mix.exchanges[name].apply(taken), members)

    def _read_units(self, epoch: int, stream: StreamOrder, numbers: Int64Array, members: range) -> Int64Array:
        """List the same for units of a stream: each is a range of places in one lane, and goes on where one ends."""
        units = self._units
        size, num_lanes = units.size, units.num_lanes
        passes, in_pass = np.divmod(numbers, units.per_pass(stream.order.num_samples))
        is_break = (np.diff(in_pass) != num_lanes) | (np.diff(passes) != 0)
        listed = np.empty((len(numbers), len(members)), dtype=np.int64)
        for begin, end in pairwise([0, *(np.flatnonzero(is_break) + 1).tolist(), len(numbers)]):
            row, lane = divmod(int(in_pass[begin]), num_lanes)
            first = (row * size + members.start) * num_lanes + lane
            stop = (row + end - begin) * size * num_lanes + lane
            spaced = range(first, stop, members.step * num_lanes)
            listed[begin:end] = stream.order.ids(epoch, int(passes[begin]), spaced).reshape(end - begin, -1)
        listed += stream.first_id
        return listed


def _find_rows(phase: Phase, lane: int, rows: Int64Array) -> Iterator[tuple[MixedStream, Int64Array]]:
    """Return which streams rows of a lane belong to: for each, what it has there, and its places among the rows."""
    done = 0
    while done < len(rows):
        mixed = phase.mixer.rows(lane, int(rows[done]))
        end = int(np.searchsorted(rows, mixed.first_row + mixed.num_rows))
        place_of = np.full(mixed.num_rows, -1, dtype=np.int64)
        place_of[rows[done:end] - mixed.first_row] = np.arange(done, end)
        for part in mixed.parts:
            places = place_of[part.rows]
            is_here = places >= 0
            if is_here.any():
                here = part._replace(rows=part.rows[is_here], indexes=np.asarray(part.indexes)[is_here])
                yield here, places[is_here]
        done = end
