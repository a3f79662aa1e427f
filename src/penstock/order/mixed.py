"""Streams mixed into one order: segments with fixed counts, every stream going on where it was."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ConfigError
from penstock.order.base import LooksAhead
from penstock.order.fronts import Exchange, advance_all, take_from_all
from penstock.order.keys import fold
from penstock.order.lanes import Chunk, lane_length, read_lanes
from penstock.order.lru import LRU
from penstock.order.mix import Mixed, Mixer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.order.base import Order
    from penstock.types import Int64Array

# Rows of a lane that are mixed together when batches do not ask for something else.
MIX_ROWS = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOrder:
    """One stream: its name, its own order, and the id of its first sample in the dataset."""

    name: str
    order: Order
    first_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of positions with a fixed mix: exact counts of samples, stream by stream."""

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
class _Run:
    """A segment ready for use: where it ends or is cut short, and every stream's fronts where it begins."""

    segment: Segment
    stop: int
    mixer: Mixer
    fronts: dict[str, Int64Array]


class EpochMix:
    """The mix of one epoch, as a list of runs."""

    def __init__(
        self, versions: Sequence[Version], *, num_lanes: int, block_rows: int, key: int, is_shuffled: bool
    ) -> None:
        self._num_lanes, self._block_rows, self._key = num_lanes, block_rows, key
        self._is_shuffled = is_shuffled
        names = {name for version in versions for segment in version.segments for name in segment.names}
        fronts = {name: np.zeros(num_lanes, dtype=np.int64) for name in sorted(names)}
        self.exchanges = {name: Exchange() for name in fronts}
        self.runs: list[_Run] = []
        for version, following in zip(versions, [*versions[1:], None], strict=True):
            runs, ends = self._plan(version, fronts)
            closed = {name: self.exchanges[name].close(fronts[name], ends[name]) for name in fronts}
            if following is not None:
                runs = [
                    replace(run, stop=min(run.stop, following.start))
                    for run in runs
                    if run.segment.start < following.start
                ]
                fronts = self.fronts_at(runs[-1], following.start) if runs else fronts
                closed = {name: self.exchanges[name].cut(closed[name], fronts[name]) for name in fronts}
            self.exchanges = closed
            self.runs += runs
        self.size = self.runs[-1].stop if self.runs else 0

    def fronts_at(self, run: _Run, position: int) -> dict[str, Int64Array]:
        """Give every stream's fronts at a position of a run."""
        offset = min(position - run.segment.start, run.segment.size)
        by_lane, small = run.mixer.taken_at(offset)
        fronts = dict(run.fronts)
        for stream, name in enumerate(run.segment.names):
            if run.mixer.is_small[stream]:
                fronts[name] = advance_all(fronts[name], int(small[stream]))
            else:
                fronts[name] = fronts[name] + np.roll(by_lane[stream], run.segment.start % self._num_lanes)
        return fronts

    def taken(self, position: int) -> dict[str, int]:
        """Count the samples of each stream before a position."""
        fronts = {}
        for run in self.runs:
            if run.segment.start < position:
                fronts = self.fronts_at(run, min(position, run.stop))
        return {name: int(front.sum()) for name, front in fronts.items()}

    def _plan(self, version: Version, fronts: dict[str, Int64Array]) -> tuple[list[_Run], dict[str, Int64Array]]:
        runs = []
        for segment in version.segments:
            mixer = Mixer(
                segment.counts,
                num_lanes=self._num_lanes,
                block_rows=self._block_rows,
                key=fold(self._key, segment.start),
                is_shuffled=self._is_shuffled,
            )
            stop = segment.start + segment.size
            runs.append(_Run(segment=segment, stop=stop, mixer=mixer, fronts=fronts))
            fronts = self.fronts_at(runs[-1], stop)
        return runs, fronts


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
        is_shuffled: bool = True,
    ) -> None:
        self._streams = {stream.name: stream for stream in streams}
        self._num_lanes, self._block_rows, self._seed = num_lanes, block_rows, seed
        self._versions_of, self._is_shuffled = versions_of, is_shuffled
        self._epochs: LRU[EpochMix] = LRU(2)
        self._chunks: LRU[Chunk] = LRU(2 * num_lanes + 2)

    @property
    def looks_ahead(self) -> bool:
        """Whether `shards` can be asked: every stream's own order knows its shards."""
        return all(isinstance(stream.order, LooksAhead) for stream in self._streams.values())

    def size(self, epoch: int) -> int:
        """Count the positions of an epoch."""
        return self.mix(epoch).size

    def mix(self, epoch: int) -> EpochMix:
        """Give the mix of an epoch."""
        return self._epochs(epoch, lambda: self._make_epoch(epoch, self._versions_of(epoch)))

    def ids(self, epoch: int, positions: range) -> Int64Array:
        """Give the ids at evenly spaced positions of an epoch."""
        mix = self.mix(epoch)
        segment = mix.runs[0].segment
        if len(mix.runs) == 1 and len(segment.names) == 1:
            return self._read_alone(epoch, self._streams[segment.names[0]], positions)

        def chunk_at(lane: int, place: int) -> Chunk:
            position = place * self._num_lanes + lane
            run = mix.runs[bisect_right(mix.runs, position, key=lambda run: run.segment.start) - 1]
            row, local_lane = divmod(position - run.segment.start, self._num_lanes)
            return self._chunks(
                (epoch, run.segment.start, local_lane, run.mixer.first_block(row)),
                lambda: self._read(epoch, mix, run, lane, run.mixer.rows(local_lane, row)),
            )

        return read_lanes(positions, self._num_lanes, chunk_at)

    def shards(self, epoch: int, positions: range) -> list[tuple[str, Int64Array, Int64Array]]:
        """Give, for each stream, the shards that evenly spaced positions need and about where each is first needed."""
        mix = self.mix(epoch)
        if not positions:
            return []
        before, after = self._fronts(mix, positions.start), self._fronts(mix, min(positions[-1] + 1, mix.size))
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

    def _fronts(self, mix: EpochMix, position: int) -> dict[str, Int64Array]:
        run = mix.runs[max(0, bisect_right(mix.runs, position, key=lambda run: run.segment.start) - 1)]
        return mix.fronts_at(run, min(position, run.stop))

    def taken(self, epoch: int, versions: Sequence[Version], position: int) -> dict[str, int]:
        """Count the samples that each stream gives before a position, if an epoch is planned like this."""
        return self._make_epoch(epoch, versions).taken(position)

    def _make_epoch(self, epoch: int, versions: Sequence[Version]) -> EpochMix:
        return EpochMix(
            versions,
            num_lanes=self._num_lanes,
            block_rows=self._block_rows,
            key=fold("mix", self._seed, epoch),
            is_shuffled=self._is_shuffled,
        )

    def _read_alone(self, epoch: int, stream: StreamOrder, positions: range) -> Int64Array:
        """Read the only stream there is: positions number its samples, pass after pass."""
        size, parts = stream.order.num_samples, []
        while positions:
            pass_id = positions.start // size
            begin = pass_id * size
            num_here = len(range(positions.start, min(positions.stop, begin + size), positions.step))
            here = positions[:num_here]
            parts.append(stream.order.ids(epoch, pass_id, range(here.start - begin, here.stop - begin, here.step)))
            positions = positions[num_here:]
        if len(parts) == 1:
            return parts[0] + stream.first_id if stream.first_id else parts[0]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts]) + stream.first_id

    def _read(self, epoch: int, mix: EpochMix, run: _Run, lane: int, mixed: Mixed) -> Chunk:
        local_lane = (lane - run.segment.start) % self._num_lanes
        first = run.segment.start + mixed.first_row * self._num_lanes + local_lane
        streams = mixed.streams[: lane_length(run.stop - first, self._num_lanes, 0)]
        ids = np.empty(len(streams), dtype=np.int64)
        for stream in np.flatnonzero(np.bincount(streams)):
            name = run.segment.names[stream]
            is_here = np.flatnonzero(streams == stream)
            fronts, indexes = run.fronts[name], mixed.indexes[is_here]
            if run.mixer.is_small[stream]:
                numbers, step = take_from_all(fronts, indexes), 1
            else:
                numbers, step = (fronts[lane] + indexes) * self._num_lanes + lane, self._num_lanes
            exchanged = mix.exchanges[name].apply(numbers)
            if exchanged is numbers and name in self._streams and _is_run(numbers, step):
                run_of_numbers = range(int(numbers[0]), int(numbers[-1]) + 1, step)
                ids[is_here] = self._read_alone(epoch, self._streams[name], run_of_numbers)
            else:
                ids[is_here] = self._name(epoch, name, exchanged, step)
        return first // self._num_lanes, ids

    def _name(self, epoch: int, name: str, numbers: Int64Array, step: int) -> Int64Array:
        """Turn numbers of a stream's samples, mostly `step` apart, into ids: runs are read at once."""
        stream = self._streams.get(name)
        if stream is None:  # it has left the mix, and only positions of the past ask for it
            return np.full(len(numbers), -1, dtype=np.int64)
        passes, places = np.divmod(numbers, stream.order.num_samples)
        is_break = (np.diff(places) != step) | (np.diff(passes) != 0)
        bounds = [0, *(np.flatnonzero(is_break) + 1).tolist(), len(numbers)]
        ids = np.empty(len(numbers), dtype=np.int64)
        for begin, end in pairwise(bounds):
            if begin < end:
                first = int(places[begin])
                places_of_run = range(first, first + (end - begin) * step, step)
                ids[begin:end] = stream.order.ids(epoch, int(passes[begin]), places_of_run)
        ids += stream.first_id
        return ids


def _is_run(numbers: Int64Array, step: int) -> bool:
    """Tell whether numbers that grow by at least `step` grow by no more."""
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
            raise ConfigError("an order that does not know its shards cannot be asked for them")
        found, needed = order.shards(epoch, pass_id, range(here.start - begin, here.stop - begin, here.step))
        shards.append(found)
        firsts.append(needed + begin)
        numbers = numbers[num_here:]
    return np.concatenate(shards), np.concatenate(firsts)
