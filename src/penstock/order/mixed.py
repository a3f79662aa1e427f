"""All streams of a run as one order: segments with fixed counts, every stream going on where it was.

What is mixed is samples, or units: the batches of one stream each, whole global batches (`per_stream`) or device
batches (`device_per_stream`), that must not be mixed within. The mixing is the same.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError
from penstock.order.base import LooksAhead
from penstock.order.keys import hash_key
from penstock.order.lanes import Chunk, lane_length, read_lanes, split_passes
from penstock.order.lru import LRU
from penstock.order.mix import ROWS_AT_ONCE, Mixed, Mixer
from penstock.order.sequential import Sequential
from penstock.order.streams import ScatteredIds, StreamOrder, StreamProgress, advance_all, take_from_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.order.mix import Segment, Version
    from penstock.types import Int64Array

# Rows of a lane that are mixed together when batches do not ask for something else.
MIX_ROWS = 1 << 12
# Samples of a small stream that are read together, if its share is as large: lanes have them in turn.
_MIN_SCATTERED, _MAX_SCATTERED = 1 << 10, 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A segment ready for use: where it ends or is cut short, and the rows taken of every stream where it begins."""

    segment: Segment
    stop: int
    mixer: Mixer
    rows_taken: dict[str, Int64Array]


class EpochMix:
    """The mix of one epoch, as a list of phases."""

    def __init__(
        self, versions: Sequence[Version], *, num_lanes: int, block_rows: int, key: int, is_shuffled: bool
    ) -> None:
        self._num_lanes, self._block_rows, self._key = num_lanes, block_rows, key
        self._is_shuffled = is_shuffled
        names = {name for version in versions for segment in version.segments for name in segment.names}
        rows_taken = {name: np.zeros(num_lanes, dtype=np.int64) for name in sorted(names)}
        self.exchanges = {name: StreamProgress() for name in rows_taken}
        self.phases: list[Phase] = []
        for version, following in zip(versions, [*versions[1:], None], strict=True):
            phases, ends = self._plan(version, rows_taken)
            closed = {name: self.exchanges[name].close(rows_taken[name], ends[name]) for name in rows_taken}
            if following is not None:
                phases = [
                    replace(phase, stop=min(phase.stop, following.start))
                    for phase in phases
                    if phase.segment.start < following.start
                ]
                rows_taken = self.rows_taken_at(phases[-1], following.start) if phases else rows_taken
                closed = {name: self.exchanges[name].cut(closed[name], rows_taken[name]) for name in rows_taken}
            self.exchanges = closed
            self.phases += phases
        self.size = self.phases[-1].stop if self.phases else 0

    def rows_taken_at(self, phase: Phase, position: int) -> dict[str, Int64Array]:
        """Count the rows of every stream that its lanes have taken before a position of a phase."""
        offset = min(position - phase.segment.start, phase.segment.size)
        by_lane, small = phase.mixer.taken_at(offset)
        rows_taken = dict(phase.rows_taken)
        for stream, name in enumerate(phase.segment.names):
            if phase.mixer.is_small[stream]:
                rows_taken[name] = advance_all(rows_taken[name], int(small[stream]))
            else:
                rows_taken[name] = rows_taken[name] + np.roll(by_lane[stream], phase.segment.start % self._num_lanes)
        return rows_taken

    def taken(self, position: int) -> dict[str, int]:
        """Count the samples of each stream before a position."""
        rows_taken = {}
        for phase in self.phases:
            if phase.segment.start < position:
                rows_taken = self.rows_taken_at(phase, min(position, phase.stop))
        return {name: int(rows.sum()) for name, rows in rows_taken.items()}

    def _plan(self, version: Version, rows_taken: dict[str, Int64Array]) -> tuple[list[Phase], dict[str, Int64Array]]:
        phases = []
        for segment in version.segments:
            mixer = Mixer(
                segment.counts,
                num_lanes=self._num_lanes,
                block_rows=self._block_rows,
                key=hash_key(self._key, segment.start),
                is_shuffled=self._is_shuffled,
            )
            stop = segment.start + segment.size
            phases.append(Phase(segment=segment, stop=stop, mixer=mixer, rows_taken=rows_taken))
            rows_taken = self.rows_taken_at(phases[-1], stop)
        return phases, rows_taken


class MixedOrder:
    """Positions of an epoch → ids, over all streams."""

    def __init__(
        self,
        streams: Sequence[StreamOrder],
        *,
        num_lanes: int,
        block_rows: int,
        seed: int,
        versions_of: Callable[[int], Sequence[Version]],
        mix_of: Callable[[int], int],
        is_shuffled: bool = True,
        word: str = "mix",
    ) -> None:
        self._streams = {stream.name: stream for stream in streams}
        self._num_lanes, self._block_rows, self._seed, self._word = num_lanes, block_rows, seed, word
        self._versions_of, self._mix_of, self._is_shuffled = versions_of, mix_of, is_shuffled
        self._epochs: LRU[EpochMix] = LRU(2)
        self._chunks: LRU[Chunk] = LRU(2 * num_lanes + 2)
        self._scattered = ScatteredIds(2 * ROWS_AT_ONCE * num_lanes + 4 * _MIN_SCATTERED * len(streams))

    def mix(self, epoch: int) -> EpochMix:
        """Return the mix of an epoch."""
        return self._epochs(epoch, lambda: self._make_epoch(epoch, self._versions_of(epoch)))

    def taken(self, epoch: int, versions: Sequence[Version], position: int) -> dict[str, int]:
        """Count what each stream gives before a position, if an epoch is planned like this."""
        return self._make_epoch(epoch, versions).taken(position)

    def _make_epoch(self, epoch: int, versions: Sequence[Version]) -> EpochMix:
        return EpochMix(
            versions,
            num_lanes=self._num_lanes,
            block_rows=self._block_rows,
            key=hash_key(self._word, self._seed, self._mix_of(epoch)),
            is_shuffled=self._is_shuffled,
        )

    @property
    def looks_ahead(self) -> bool:
        """Whether `shards` can be asked: every stream's own order knows its shards."""
        return all(isinstance(stream.order, LooksAhead) for stream in self._streams.values())

    def size(self, epoch: int) -> int:
        """Count the positions of an epoch."""
        return self.mix(epoch).size

    def ids(self, epoch: int, positions: range) -> Int64Array:
        """Return the ids at evenly spaced positions of an epoch."""
        mix = self.mix(epoch)
        segment = mix.phases[0].segment
        if len(mix.phases) == 1 and len(segment.names) == 1:
            return self._streams[segment.names[0]].spaced(epoch, positions)

        def chunk_at(lane: int, place: int) -> Chunk:
            position = place * self._num_lanes + lane
            phase = mix.phases[bisect_right(mix.phases, position, key=lambda phase: phase.segment.start) - 1]
            row, local_lane = divmod(position - phase.segment.start, self._num_lanes)
            return self._chunks(
                (epoch, phase.segment.start, local_lane, phase.mixer.first_block(row)),
                lambda: self._read(epoch, mix, phase, lane, phase.mixer.rows(local_lane, row)),
            )

        return read_lanes(positions, self._num_lanes, chunk_at)

    def shards(self, epoch: int, positions: range) -> list[tuple[str, Int64Array, Int64Array]]:
        """Return, per stream, the shards that evenly spaced positions need and about where each is needed first."""
        mix = self.mix(epoch)
        if not positions:
            return []
        before, after = self._rows_taken(mix, positions.start), self._rows_taken(mix, min(positions[-1] + 1, mix.size))
        step = math.gcd(self._num_lanes, positions.step)
        found = []
        for name, stream in self._streams.items():
            if name not in after or not (after[name] > before[name]).any():
                continue
            low = int(before[name].min()) * self._num_lanes
            numbers = range(low + (positions.start - low) % step, int(after[name].max()) * self._num_lanes, step)
            shards, firsts = _shards_of(stream.order, epoch, numbers)
            pace = (positions[-1] + 1 - positions.start) / max(1, numbers.stop - numbers.start)
            found.append((name, shards, positions.start + ((firsts - numbers.start) * pace).astype(np.int64)))
        return found

    def _rows_taken(self, mix: EpochMix, position: int) -> dict[str, Int64Array]:
        phase = mix.phases[max(0, bisect_right(mix.phases, position, key=lambda phase: phase.segment.start) - 1)]
        return mix.rows_taken_at(phase, min(position, phase.stop))

    def _read(self, epoch: int, mix: EpochMix, phase: Phase, lane: int, mixed: Mixed) -> Chunk:
        local_lane = (lane - phase.segment.start) % self._num_lanes
        first = phase.segment.start + mixed.first_row * self._num_lanes + local_lane
        num_rows = min(mixed.num_rows, lane_length(phase.stop - first, self._num_lanes, 0))
        ids = np.empty(num_rows, dtype=np.int64)
        for stream, rows, indexes in mixed.parts:
            num_here = len(rows) if num_rows == mixed.num_rows else int(np.searchsorted(rows, num_rows))
            if num_here:
                here = indexes[:num_here]
                ids[rows[:num_here]] = self._read_stream(epoch, mix, phase, lane, stream, here)
        return first // self._num_lanes, ids

    def _read_stream(
        self, epoch: int, mix: EpochMix, phase: Phase, lane: int, number: int, indexes: range | Int64Array
    ) -> Int64Array:
        """Return the ids of what a lane takes of a stream, by indexes as in `Mixed`."""
        name, num_lanes = phase.segment.names[number], self._num_lanes
        stream, exchange, rows_taken = self._streams.get(name), mix.exchanges[name], phase.rows_taken[name]
        if stream is None:  # it has left the mix, and only positions of the past ask for it
            return np.full(len(indexes), -1, dtype=np.int64)
        if phase.mixer.is_small[number]:
            numbers, step = take_from_all(rows_taken, np.asarray(indexes)), 1
        else:
            if isinstance(indexes, range):
                first = (int(rows_taken[lane]) + indexes.start) * num_lanes + lane
                spaced = range(first, first + len(indexes) * num_lanes, num_lanes)
                if not exchange.concerns(spaced[-1]):
                    return stream.spaced(epoch, spaced)
            numbers, step = (rows_taken[lane] + np.asarray(indexes)) * num_lanes + lane, num_lanes
        exchanged = exchange.apply(numbers)
        if exchanged is numbers and int(numbers[-1] - numbers[0]) == step * (len(numbers) - 1):  # evenly spaced
            return stream.spaced(epoch, range(int(numbers[0]), int(numbers[-1]) + 1, step))
        if not phase.mixer.is_small[number]:
            return stream.mostly_spaced(epoch, exchanged, step)
        # As many as all lanes together take until it is this lane's turn again.
        taken_by_all = phase.segment.counts[number] * ROWS_AT_ONCE * num_lanes // phase.segment.size
        block_size = min(max(_MIN_SCATTERED, 1 << taken_by_all.bit_length()), _MAX_SCATTERED)
        return self._scattered.ids(epoch, stream, exchanged, block_size)


def _shards_of(order: Any, epoch: int, numbers: range) -> tuple[Int64Array, Int64Array]:
    """Ask a stream's order for the shards of some of its samples, numbered pass after pass."""
    shards, firsts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for pass_id, here in split_passes(numbers, order.num_samples):
        found, needed = order.shards(epoch, pass_id, here)
        shards.append(found)
        firsts.append(needed + pass_id * order.num_samples)
    return np.concatenate(shards), np.concatenate(firsts)


# Rows of units that are mixed together: enough to hold every stream's share, few enough to hold it soon.
_UNIT_ROWS = 64
_MOST_UNITS = 1 << 44  # of a stream, over all its passes of an epoch


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
    """Positions of an epoch → ids, with whole units of one stream each.

    Units are mixed as samples are, by their numbers within their streams; then the samples of each are found.
    """

    def __init__(self, streams: Sequence[StreamOrder], *, units: Units, **others: Any) -> None:
        self._streams, self._units = streams, units
        numbered = [
            StreamOrder(name=stream.name, order=Sequential(np.array([_MOST_UNITS])), first_id=number * _MOST_UNITS)
            for number, stream in enumerate(streams)
        ]
        self._mixed = MixedOrder(numbered, num_lanes=units.num_lanes, block_rows=_UNIT_ROWS, word="units", **others)
        self.taken = self._mixed.taken  # counted in units

    def size(self, epoch: int) -> int:
        """Count the positions of an epoch: whole global batches only."""
        return self._mixed.size(epoch) // self._units.per_batch * self._units.batch_size

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

    def _read(self, epoch: int, units: Int64Array, members: range) -> Int64Array:
        """List the ids of some members of units of the epoch, in rising order: [unit][member]."""
        step = int(np.gcd.reduce(np.diff(units))) if len(units) > 1 else 1
        mixed = self._mixed.ids(epoch, range(int(units[0]), int(units[-1]) + 1, step))[(units - units[0]) // step]
        listed = np.full((len(units), len(members)), -1, dtype=np.int64)  # of streams that have left the mix
        for number, stream in enumerate(self._streams):
            mine = np.flatnonzero(mixed // _MOST_UNITS == number)
            if len(mine):
                numbers = mixed[mine] - number * _MOST_UNITS
                by_lane = np.lexsort([numbers, numbers % self._units.num_lanes])
                listed[mine[by_lane]] = self._read_units(epoch, stream, numbers[by_lane], members)
        return listed

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
