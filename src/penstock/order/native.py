"""The plan of a native run: its mixes, the one order over all positions of an epoch, and every question of `Plan`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from penstock.errors import ConfigError, ResumeError
from penstock.order.base import STRETCHES, orders
from penstock.order.cursor import STATE_VERSION
from penstock.order.id_spans import IdSpans
from penstock.order.keys import hash_key
from penstock.order.lru import LRU
from penstock.order.mix import Segment, Version
from penstock.order.mixed import MIX_ROWS, MixedOrder, UnitOrder, Units
from penstock.order.options import default_lanes
from penstock.order.plan import first_uses
from penstock.order.schedule import MixSchedule
from penstock.order.sequential import EndToEnd
from penstock.order.streams import StreamOrder
from penstock.order.weights import apportion, count_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.order.cursor import Cursor
    from penstock.order.options import OrderOptions, StreamShards
    from penstock.order.world import Seat, World
    from penstock.types import Int64Array


EpochOrder: TypeAlias = MixedOrder | UnitOrder | EndToEnd  # positions of an epoch → ids, over all streams


@dataclass(frozen=True, slots=True, kw_only=True)
class MixSpec:
    """The mix of a whole run: exact counts per epoch, or a schedule over epochs of so many samples."""

    names: tuple[str, ...]
    counts: tuple[int, ...]
    is_relative: bool = False
    schedule: MixSchedule | None = None

    def describe(self) -> dict[str, Any]:
        """Describe the mix in plain JSON values, as `read` reads them."""
        return {
            "names": list(self.names),
            "counts": list(self.counts),
            "is_relative": self.is_relative,
            "schedule": self.schedule.describe() if self.schedule else None,
        }

    @classmethod
    def read(cls, described: dict[str, Any]) -> MixSpec:
        """Make the mix that `describe` described."""
        schedule = described["schedule"]
        return cls(
            names=tuple(described["names"]),
            counts=tuple(described["counts"]),
            is_relative=described["is_relative"],
            schedule=None if schedule is None else MixSchedule.read(schedule),
        )

    def segments(self, epoch: int, position: int, taken: dict[str, int]) -> list[tuple[int, ...]]:
        """Count the samples of each segment of what is left of an epoch, given what streams gave already."""
        size = sum(self.counts)
        if self.schedule is not None and position < size:
            left = self.schedule.segments(epoch * size + position, (epoch + 1) * size)
            return [counts for _, counts in left]
        if position == 0:
            return [self.counts]
        if self.is_relative:
            return [tuple(apportion([Fraction(count) for count in self.counts], max(0, size - position)))]
        owed = (count - taken.get(name, 0) for name, count in zip(self.names, self.counts, strict=True))
        return [tuple(max(0, count) for count in owed)]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The mixes that an epoch had before the present one, where each ended, and their streams' sizes."""

    epoch: int
    mixes: tuple[tuple[int, MixSpec], ...]
    sizes: dict[str, int]


def plan_versions(
    epoch: int, mixes: Sequence[tuple[int, MixSpec]], sizes: dict[str, int], units: Units | None, order: EpochOrder
) -> list[Version]:
    """Plan an epoch from its mixes, given as (start, mix): each goes on where the one before it ended."""
    versions: list[Version] = []
    for position, mix in mixes:
        unit_size = units.size if units else 1
        start = position // unit_size
        taken = order.taken(epoch, versions, start) if versions else {}
        in_samples = {name: count * unit_size for name, count in taken.items()}
        segments = []
        at = start
        for counts in mix.segments(epoch, position, in_samples):
            if units is not None:
                pairs = zip(mix.names, counts, strict=True)
                counts = tuple(units.count(name, count, sizes[name]) for name, count in pairs)
            if sum(counts):
                segments.append(Segment(start=at, names=mix.names, counts=counts))
            at += sum(counts)
        versions.append(Version(start=start, segments=tuple(segments)))
    return versions


def units_of(options: OrderOptions, num_lanes: int) -> Units | None:
    """Return in which units batches are cut, if they hold one stream each."""
    batch_size = options.global_batch_size or 0
    if options.batching_method == "per_stream":
        return Units(size=batch_size, per_batch=1, num_lanes=1)
    if options.batching_method == "device_per_stream":
        size = options.device_batch_size or batch_size
        per_batch = batch_size // size
        return Units(size=size, per_batch=per_batch, num_lanes=math.gcd(num_lanes, per_batch))
    return None


def lay_streams(
    streams: Sequence[StreamShards], windows: dict[str, int], options: OrderOptions, num_lanes: int
) -> list[StreamOrder]:
    """Return each stream its own order, and its ids after those of the streams before it."""
    make = orders.get(options.order if options.shuffle else "sequential")
    firsts = np.cumsum([0, *(int(stream.all_lengths.sum()) for stream in streams)])
    return [
        StreamOrder(
            name=stream.name,
            order=make(
                stream.lengths,
                seed=options.seed,
                stream=stream.name,
                num_lanes=num_lanes,
                window=windows[stream.name],
                **_stretches(stream, options),
            ),
            first_id=int(first),
        )
        for stream, first in zip(streams, firsts, strict=False)
    ]


def _stretches(stream: StreamShards, options: OrderOptions) -> dict[str, Int64Array]:
    """Return the stretches of a stream to the order that heeds them."""
    heeds = options.order == STRETCHES and options.shuffle
    return {"stretches": stream.stretches} if heeds and stream.stretches is not None else {}


def make_order(
    streams: Sequence[StreamShards],
    windows: dict[str, int],
    options: OrderOptions,
    num_lanes: int,
    versions_of: Callable[[int], Sequence[Version]],
    mix_of: Callable[[int], int],
) -> EpochOrder:
    """Join streams, mix and batching method into one order; `mix_of` gives the epoch whose mix an epoch has."""
    batch_size, block_rows = options.global_batch_size or 1, MIX_ROWS
    made: dict[str, Any] = {"seed": options.seed, "versions_of": versions_of}
    if options.batching_method == "random":
        if not options.shuffle and options.schedule is None:
            return EndToEnd(lay_streams(streams, windows, options, num_lanes), num_lanes=num_lanes, **made)
    else:
        # Whole rows of lanes make up each global batch, for any number of nodes that divides lanes and batch.
        num_lanes = math.gcd(num_lanes, batch_size)
        block_rows = batch_size // num_lanes
    made |= {"mix_of": mix_of, "is_shuffled": options.shuffle}
    units = units_of(options, num_lanes)
    if units is None:
        laid = lay_streams(streams, windows, options, num_lanes)
        return MixedOrder(laid, num_lanes=num_lanes, block_rows=block_rows, **made)
    lanes = units.num_lanes if units.per_batch > 1 else num_lanes
    return UnitOrder(lay_streams(streams, windows, options, lanes), units=units, **made)


_FIRST_IDS_AT_ONCE = 1 << 11
_IDS_AT_ONCE = 1 << 16


class ReadAhead:
    """Reads more ids than asked for and hands them out piece by piece, so that small batches cost little.

    It begins with few and reads twice as many each time, so that the first batch comes soon.
    """

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self._kept: LRU[list[tuple[range, Int64Array]]] = LRU(4)

    def ids(self, epoch: int, positions: range) -> Int64Array:
        """Return the ids at evenly spaced positions of an epoch; the caller may change the array."""
        if len(positions) == 0:
            return self._order.ids(epoch, positions)
        step = positions.step
        kept = self._kept((epoch, step, positions.start % step), list)
        for have, ids in kept:
            if have.start <= positions.start and positions[-1] <= have[-1]:
                first = (positions.start - have.start) // step
                return ids[first : first + len(positions)].copy()
        has_followed = bool(kept) and kept[-1][0].start < positions.start <= kept[-1][0][-1] + step
        num_ahead = min(2 * len(kept[-1][0]), _IDS_AT_ONCE) if has_followed else _FIRST_IDS_AT_ONCE
        ahead = range(positions.start, positions.start + max(len(positions), num_ahead) * step, step)
        ahead = range(ahead.start, min(ahead.stop, self._order.size(epoch)), step)
        ids = self._order.ids(epoch, ahead)
        kept.append((ahead, ids))
        del kept[:-2]
        return ids[: len(positions)].copy()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamPlan:
    """Answers who gets which samples, for streams mixed into one native order; made by `StreamPlan.make`."""

    streams: tuple[StreamShards, ...]
    options: OrderOptions
    mix: MixSpec
    num_lanes: int
    windows: dict[str, int]
    history: History | None = None
    mixed_anew: int | None = None  # an epoch begun when epochs without shuffling were mixed each in its own way
    later: tuple[int, StreamPlan] | None = None  # the last epoch of this plan, and the plan of what has grown since
    spans: IdSpans = field(init=False)
    order: EpochOrder = field(init=False)
    _ahead: ReadAhead = field(init=False)

    @classmethod
    def make(cls, streams: Sequence[StreamShards], options: OrderOptions) -> StreamPlan:
        """Plan a run: what the options leave open follows from the shard lengths."""
        lengths, sizes = [stream.lengths for stream in streams], [stream.sizes for stream in streams]
        lanes = options.num_canonical_nodes or (default_lanes(lengths, sizes) if options.shuffle else 1)
        return cls(
            streams=tuple(streams),
            options=options,
            mix=make_mix(streams, options),
            num_lanes=lanes,
            windows={
                stream.name: stream.choose_window(options.shuffle_block_size, lanes, len(streams)) for stream in streams
            },
        )

    def __post_init__(self) -> None:
        names = [stream.name for stream in self.streams]
        if len(set(names)) < len(names):
            raise ConfigError(f"two of the streams {names} have the same name: give each stream its own name")
        order = make_order(self.streams, self.windows, self.options, self.num_lanes, self._versions_of, self._mix_of)
        spans = IdSpans(np.concatenate([stream.all_lengths for stream in self.streams]))
        object.__setattr__(self, "spans", spans)
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "_ahead", ReadAhead(order))
        if self.history is None and self.epoch_size(0) == 0:
            raise ConfigError(
                "an epoch is smaller than one whole batch: use smaller batches, or batching_method='random'"
            )

    @property
    def fingerprint(self) -> str:
        """Name the dataset and the order: a state with another fingerprint belongs to another run."""
        return name_plan(self.streams, self.options, self.mix, self.num_lanes, self.windows)

    def of(self, epoch: int) -> StreamPlan:
        """Return the plan of an epoch: this one, or after the epoch under way that of what has grown."""
        return self if self.later is None or epoch <= self.later[0] else self.later[1]

    def epoch_size(self, epoch: int) -> int:
        """Count the samples of an epoch, without the repeats that make ranks equal."""
        return self.of(epoch).order.size(epoch)

    def stop(self, at: Cursor, num_ranks: int, global_batch_size: int) -> int:
        """Return the position where a pass ends: past the last sample if ranks are made equal."""
        return self._stop(self.epoch_size(at.epoch), at, num_ranks, global_batch_size)

    def _stop(self, size: int, at: Cursor, num_ranks: int, global_batch_size: int) -> int:
        left = max(0, size - at.position)
        if self.options.epoch_end == "drop":
            return at.position + left // global_batch_size * global_batch_size
        if self.options.epoch_end == "pad":
            return at.position + -(-left // num_ranks) * num_ranks
        if self.options.epoch_end == "trim":
            return at.position + left // num_ranks * num_ranks
        return at.position + left

    def num_batches(self, at: Cursor, seat: Seat, global_batch_size: int) -> int:
        """Count the steps that this rank takes from the cursor to the end of the epoch."""
        self._check_batch(at, global_batch_size, seat.world)
        num_ranks = seat.world.num_ranks
        stop = self.stop(at, num_ranks, global_batch_size)
        if self.options.epoch_end == "uneven":
            # The last position of this rank's own, which may lie before the last global batch.
            stop = stop - (stop - 1 - seat.residue) % num_ranks if stop > at.position else stop
        return max(0, -(-(stop - at.position) // global_batch_size))

    def global_batch(self, at: Cursor, step: int, world: World, global_batch_size: int) -> Int64Array:
        """Return the ids of one global batch in global order, declared repeats included; empty past the end."""
        return self._read(at, step, 1, world, global_batch_size, residue=0, modulus=1)

    def batch(self, at: Cursor, step: int, seat: Seat, global_batch_size: int) -> Int64Array:
        """Return the ids of one rank's share of a global batch; empty past the end of the epoch."""
        modulus = seat.world.num_ranks
        return self._read(at, step, 1, seat.world, global_batch_size, residue=seat.residue, modulus=modulus)

    def batches(self, at: Cursor, steps: range, seat: Seat, global_batch_size: int) -> list[Int64Array]:
        """Return the same for several steps at once, which costs little more than one of them."""
        share, rest = divmod(global_batch_size, seat.world.num_ranks)
        if rest or not steps:
            return [self.batch(at, step, seat, global_batch_size) for step in steps]
        first, modulus = steps.start, seat.world.num_ranks
        num_steps = steps[-1] + 1 - first
        ids = self._read(at, first, num_steps, seat.world, global_batch_size, residue=seat.residue, modulus=modulus)
        return [ids[(step - first) * share : (step - first + 1) * share] for step in steps]

    def first_of_batch(self, at: Cursor, step: int, seat: Seat, global_batch_size: int) -> Int64Array:
        """Return the first id of one rank's share of a global batch; empty past the end of the epoch.

        It is computed alone: of a whole batch, many lanes have a window to shuffle.
        """
        self._check_batch(at, global_batch_size, seat.world)
        begin = at.position + step * global_batch_size
        first = begin + (seat.residue - begin) % seat.world.num_ranks
        if first >= min(begin + global_batch_size, self.epoch_size(at.epoch)):  # there is none, or it is a repeat
            return self.batch(at, step, seat, global_batch_size)[:1]
        return self.of(at.epoch).order.ids(at.epoch, range(first, first + 1))

    def upcoming_shards(
        self, at: Cursor, step: int, num_steps: int, seat: Seat, global_batch_size: int, *, of: Literal["rank", "node"]
    ) -> Int64Array:
        """List the shards that the rank or its node touches in the next steps, in order of first use."""
        residue, modulus = (seat.residue, seat.world.num_ranks) if of == "rank" else (seat.node, seat.world.num_nodes)
        ids = self._read(at, step, num_steps, seat.world, global_batch_size, residue=residue, modulus=modulus)
        shards, _ = self.spans.locate(ids)
        found, first_use = np.unique(shards, return_index=True)
        return found[np.argsort(first_use)]

    def expected_shards(
        self, at: Cursor, step: int, num_steps: int, seat: Seat, global_batch_size: int
    ) -> tuple[Int64Array, Int64Array]:
        """Guess the shards that the rank needs in the next steps, and in how many steps each is first used."""
        begin = at.position + step * global_batch_size
        end = min(begin + num_steps * global_batch_size, self.epoch_size(at.epoch))
        modulus = seat.world.num_ranks
        positions = range(begin + (seat.residue - begin) % modulus, end, modulus)
        if not positions:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        order = self.of(at.epoch).order
        if isinstance(order, MixedOrder) and order.looks_ahead:
            firsts = dict(
                zip(self.windows, np.cumsum([0, *(len(each.all_lengths) for each in self.streams)]), strict=False)
            )
            found = order.shards(at.epoch, positions)
            shards = np.concatenate([np.zeros(0, np.int64), *(local + firsts[name] for name, local, _ in found)])
            places = np.concatenate([np.zeros(0, np.int64), *(places for _, _, places in found)])
            by_place = np.argsort(places, kind="stable")
            shards, places = shards[by_place], places[by_place]
        else:
            shards, _ = self.spans.locate(order.ids(at.epoch, positions))
            places = np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
        return first_uses(shards, (places - begin) // global_batch_size)

    def state_dict(self, at: Cursor) -> dict[str, Any]:
        """Describe the cursor and all that a plan must adopt to go on from it, as plain JSON values."""
        if (plan := self.of(at.epoch)) is not self:
            return plan.state_dict(at)
        options = self.options
        return {
            "version": STATE_VERSION,
            "order": options.order,
            "epoch": at.epoch,
            "position": min(at.position, self.epoch_size(at.epoch)),
            "seed": options.seed,
            "lanes": self.num_lanes,
            "windows": dict(self.windows),
            "shuffle": options.shuffle,
            "batching_method": options.batching_method,
            "global_batch_size": options.global_batch_size,
            "device_batch_size": options.device_batch_size,
            "streams": {stream.name: stream.fingerprint for stream in self.streams},
            "sizes": {stream.name: stream.num_samples for stream in self.streams},
            "mix": self.mix.describe(),
            "history": [
                {"until": until, "mix": mix.describe()}
                for until, mix in (self.history.mixes if self.history else ())
                if self.history is not None and self.history.epoch == at.epoch
            ],
            "fingerprint": self.fingerprint,
            **({} if options.shuffle else {"mixes_alike": at.epoch != self.mixed_anew}),
        }

    def _mix_of(self, epoch: int) -> int:
        """Return the epoch whose mix an epoch has: without shuffling, all are alike."""
        return epoch if self.options.shuffle or epoch == self.mixed_anew else 0

    def _versions_of(self, epoch: int) -> list[Version]:
        sizes = {stream.name: stream.num_samples for stream in self.streams}
        units = units_of(self.options, math.gcd(self.num_lanes, self.options.global_batch_size or 1))
        mixes = [(0, self.mix)]
        if self.history is not None and self.history.epoch == epoch:
            sizes = {**self.history.sizes, **sizes}
            starts = [0, *(until for until, _ in self.history.mixes)]
            mixes = list(zip(starts, [*(mix for _, mix in self.history.mixes), self.mix], strict=True))
        return plan_versions(epoch, mixes, sizes, units, self.order)

    def _check_batch(self, at: Cursor, global_batch_size: int, world: World) -> None:
        options = self.options
        if global_batch_size < 1:
            raise ConfigError(f"the global batch size is {global_batch_size}: set it to 1 or more")
        if options.batching_method == "random":
            return
        if global_batch_size != options.global_batch_size:
            raise ConfigError(
                f"batching_method={options.batching_method!r} was planned for global batches of"
                f" {options.global_batch_size}, not {global_batch_size}: keep that size, or use"
                " batching_method='random'"
            )
        if at.position % global_batch_size and at.position < self.epoch_size(at.epoch):
            raise ResumeError(
                f"position {at.position} is inside a global batch of {global_batch_size}, and"
                f" batching_method={options.batching_method!r} cannot divide a batch: resume at a multiple of"
                f" {global_batch_size}"
            )
        if options.batching_method == "device_per_stream":
            num_devices = global_batch_size // (options.device_batch_size or 1)
            if world.num_ranks != num_devices:
                raise ConfigError(
                    f"batching_method='device_per_stream' was planned for {num_devices} device batches of"
                    f" {options.device_batch_size}, so it cannot serve {world.num_ranks} ranks: use {num_devices}"
                )

    def _read(
        self, at: Cursor, step: int, num_steps: int, world: World, global_batch_size: int, *, residue: int, modulus: int
    ) -> Int64Array:
        """Read the positions ≡ residue of some global batches, and the repeats after the last position."""
        self._check_batch(at, global_batch_size, world)
        size, num_ranks = self.epoch_size(at.epoch), world.num_ranks
        stop = self._stop(size, at, num_ranks, global_batch_size)
        begin = at.position + step * global_batch_size
        end = min(begin + num_steps * global_batch_size, stop)
        first = begin + (residue - begin) % modulus
        ahead = self.of(at.epoch)._ahead
        ids = ahead.ids(at.epoch, range(first, min(end, size), modulus))
        first_repeat = max(begin, size) + (residue - max(begin, size)) % modulus
        repeats = [
            ahead.ids(at.epoch, range(source, source + 1))
            for position in range(first_repeat, end, modulus)
            # The same rank's last position, so that nothing is fetched for it.
            for source in [position - num_ranks if position >= num_ranks else (position - size) % size]
        ]
        if repeats:
            ids = np.concatenate([ids, *repeats])
        if self.history is not None and (ids < 0).any():
            raise ResumeError(
                "a position before the change of the mix belongs to a stream that was removed: add the stream again"
            )
        return ids


def name_plan(
    streams: Sequence[StreamShards], options: OrderOptions, mix: MixSpec, num_lanes: int, windows: dict[str, int]
) -> str:
    """Return the fingerprint of a plan, without making it."""
    words: list[int | str | None] = [
        options.order,
        num_lanes,
        options.seed,
        str(options.shuffle),
        options.batching_method,
        options.global_batch_size if options.batching_method != "random" else 0,
        options.device_batch_size if options.batching_method == "device_per_stream" else 0,
        str(options.schedule.describe() if options.schedule else None),
    ]
    for stream, count in zip(streams, mix.counts, strict=True):
        words += [stream.name, stream.fingerprint, windows[stream.name], count]
    return f"{hash_key(*(word or 0 for word in words)):016x}"


def make_mix(streams: Sequence[StreamShards], options: OrderOptions) -> MixSpec:
    """Fix how many samples each stream gives to an epoch."""
    sizes = [stream.num_samples for stream in streams]
    if options.schedule is not None:
        check_schedule(options.schedule, streams)
    counts = count_samples([stream.weight for stream in streams], sizes, options.epoch_size)
    return MixSpec(
        names=tuple(stream.name for stream in streams),
        counts=tuple(counts),
        is_relative=options.epoch_size is not None or streams[0].weight.proportion is not None,
        schedule=options.schedule,
    )


def check_schedule(schedule: MixSchedule, streams: Sequence[StreamShards]) -> None:
    """Refuse a schedule that is not one of these streams."""
    if len(schedule.proportions[0]) != len(streams):
        raise ConfigError(
            f"the schedule has {len(schedule.proportions[0])} proportions, but there are {len(streams)} streams:"
            " give one proportion per stream"
        )
    for number, stream in enumerate(streams):
        if stream.weight.proportion or stream.weight.repeat or stream.weight.choose:
            raise ConfigError(f"stream {stream.name!r} has a weight, and there is a schedule: leave out one of the two")
        if not stream.num_samples and any(shares[number] for shares in schedule.proportions):
            raise ConfigError(
                f"stream {stream.name!r} is empty, but the schedule gives it a share: set its proportion to 0"
            )
