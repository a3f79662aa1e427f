"""Batches of one stream each: whole global batches (`per_stream`) or device batches (`device_per_stream`).

What is mixed here is not samples but units, the batches that must not be mixed within. The mixing is the
same.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from penstock.errors import ConfigError
from penstock.order.keys import fold
from penstock.order.lru import LRU
from penstock.order.mixed import EpochMix
from penstock.order.rows_taken import take_from_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.order.mixed import StreamOrder, Version
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
        is_shuffled: bool,
    ) -> None:
        self._streams = {stream.name: stream for stream in streams}
        self._units, self._seed = units, seed
        self._versions_of, self._is_shuffled = versions_of, is_shuffled
        self._epochs: LRU[EpochMix] = LRU(2)

    def size(self, epoch: int) -> int:
        """Count the positions of an epoch: whole global batches only."""
        return self.mix(epoch).size // self._units.per_batch * self._units.batch_size

    def mix(self, epoch: int) -> EpochMix:
        """Give the mix of an epoch, counted in units."""
        return self._epochs(epoch, lambda: self._make_epoch(epoch, self._versions_of(epoch)))

    def ids(self, epoch: int, positions: range) -> Int64Array:
        """Give the ids at evenly spaced positions of an epoch."""
        numbers = np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
        batches, slots = np.divmod(numbers, self._units.batch_size)
        members, devices = np.divmod(slots, self._units.per_batch)
        wanted, which = np.unique(batches * self._units.per_batch + devices, return_inverse=True)
        if len(wanted) == 0:
            return numbers
        listed = np.stack([self._read(epoch, int(unit)) for unit in wanted])
        return listed[which, members]

    def taken(self, epoch: int, versions: Sequence[Version], position: int) -> dict[str, int]:
        """Count the units that each stream gives before a unit, if an epoch is planned like this."""
        return self._make_epoch(epoch, versions).taken(position)

    def _make_epoch(self, epoch: int, versions: Sequence[Version]) -> EpochMix:
        return EpochMix(
            versions,
            num_lanes=self._units.num_lanes,
            block_rows=_UNIT_ROWS,
            key=fold("units", self._seed, epoch),
            is_shuffled=self._is_shuffled,
        )

    def _read(self, epoch: int, unit: int) -> Int64Array:
        """List the ids of one unit of the epoch."""
        mix, num_lanes = self.mix(epoch), self._units.num_lanes
        phase = mix.phases[bisect_right(mix.phases, unit, key=lambda phase: phase.segment.start) - 1]
        row, local_lane = divmod(unit - phase.segment.start, num_lanes)
        mixed = phase.mixer.rows(local_lane, row)
        index = mixed.indexes[row - mixed.first_row :][:1]
        number = int(mixed.streams[row - mixed.first_row])
        name = phase.segment.names[number]
        lane, rows_taken = unit % num_lanes, phase.rows_taken[name]
        if phase.mixer.is_small[number]:
            taken = take_from_all(rows_taken, index)
        else:
            taken = (rows_taken[lane] + index) * num_lanes + lane
        if name not in self._streams:  # it has left the mix, and only positions of the past ask for it
            return np.full(self._units.size, -1, dtype=np.int64)
        return self._read_from(epoch, self._streams[name], int(mix.exchanges[name].apply(taken)[0]))

    def _read_from(self, epoch: int, stream: StreamOrder, unit: int) -> Int64Array:
        """List the ids of one unit of a stream: a range of places in one lane."""
        units = self._units
        pass_id, unit = divmod(unit, units.per_pass(stream.order.num_samples))
        row, lane = divmod(unit, units.num_lanes)
        first = row * units.size * units.num_lanes + lane
        positions = range(first, first + units.size * units.num_lanes, units.num_lanes)
        return stream.order.ids(epoch, pass_id, positions) + stream.first_id
