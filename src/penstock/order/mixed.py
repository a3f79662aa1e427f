"""Streams mixed into one order: segments with fixed counts, every stream going on where it was."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ConfigError
from penstock.order.base import LooksAhead
from penstock.order.keys import hash_key
from penstock.order.lanes import Chunk, lane_length, read_lanes
from penstock.order.lru import LRU
from penstock.order.mix import ROWS_AT_ONCE, Mixed, Mixer
from penstock.order.stream_ids import ScatteredIds, StreamOrder
from penstock.order.stream_progress import StreamProgress, advance_all, take_from_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.order.base import Order
    from penstock.types import Int64Array

# Rows of a lane that are mixed together when batches do not ask for something else.
MIX_ROWS = 1 << 12
# Samples of a small stream that are read together, if its share is as large: lanes have them in turn.
_MIN_SCATTERED, _MAX_SCATTERED = 1 << 10, 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Positions side by side with a fixed mix: exact counts of samples, stream by stream."""

    start: int
    names: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Count the positions."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The mix as planned from a position on; a later version cuts it short."""

    start: int
    segments: tuple[Segment, ...]


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
    ) -> None:
        self._streams = {stream.name: stream for stream in streams}
        self._num_lanes, self._block_rows, self._seed = num_lanes, block_rows, seed
        self._versions_of, self._mix_of, self._is_shuffled = versions_of, mix_of, is_shuffled
        self._epochs: LRU[EpochMix] = LRU(2)
        self._chunks: LRU[Chunk] = LRU(2 * num_lanes + 2)
        self._scattered = ScatteredIds(2 * ROWS_AT_ONCE * num_lanes + 4 * _MIN_SCATTERED * len(streams))

    @property
    def looks_ahead(self) -> bool:
        """Whether `shards` can be asked: every stream's own order knows its shards."""
        return all(isinstance(stream.order, LooksAhead) for stream in self._streams.values())

    def size(self, epoch: int) -> int:
        """Count the positions of an epoch."""
        return self.mix(epoch).size

    def mix(self, epoch: int) -> EpochMix:
        """Return the mix of an epoch."""
        return self._epochs(epoch, lambda: self._make_epoch(epoch, self._versions_of(epoch)))

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

    def taken(self, epoch: int, versions: Sequence[Version], position: int) -> dict[str, int]:
        """Count the samples that each stream gives before a position, if an epoch is planned like this."""
        return self._make_epoch(epoch, versions).taken(position)

    def _make_epoch(self, epoch: int, versions: Sequence[Version]) -> EpochMix:
        return EpochMix(
            versions,
            num_lanes=self._num_lanes,
            block_rows=self._block_rows,
            key=hash_key("mix", self._seed, self._mix_of(epoch)),
            is_shuffled=self._is_shuffled,
        )

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
        if exchanged is numbers and _is_evenly_spaced(numbers, step):
            return stream.spaced(epoch, range(int(numbers[0]), int(numbers[-1]) + 1, step))
        if not phase.mixer.is_small[number]:
            return stream.mostly_spaced(epoch, exchanged, step)
        # As many as all lanes together take until it is this lane's turn again.
        taken_by_all = phase.segment.counts[number] * ROWS_AT_ONCE * num_lanes // phase.segment.size
        block_size = min(max(_MIN_SCATTERED, 1 << taken_by_all.bit_length()), _MAX_SCATTERED)
        return self._scattered.ids(epoch, stream, exchanged, block_size)


def _is_evenly_spaced(numbers: Int64Array, step: int) -> bool:
    """Return whether numbers that grow by at least `step` grow by no more."""
    return int(numbers[-1] - numbers[0]) == step * (len(numbers) - 1)


def _shards_of(order: Order, epoch: int, numbers: range) -> tuple[Int64Array, Int64Array]:
    """Ask a stream's order for the shards of some of its samples, numbered pass after pass."""
    shards, firsts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    size = order.num_samples
    while numbers:
        pass_id = numbers.start // size
        begin = pass_id * size
        num_here = len(range(numbers.start, min(numbers.stop, begin + size), numbers.step))
        here = numbers[:num_here]
        if not isinstance(order, LooksAhead):
            raise ConfigError("this order cannot tell which shards it needs")
        found, needed = order.shards(epoch, pass_id, range(here.start - begin, here.stop - begin, here.step))
        shards.append(found)
        firsts.append(needed + begin)
        numbers = numbers[num_here:]
    return np.concatenate(shards), np.concatenate(firsts)
