"""From options and streams to one order over all positions of an epoch: the choice of parts, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.order.base import STRETCHES, orders
from penstock.order.mix import Segment, Version
from penstock.order.mixed import MIX_ROWS, MixedOrder, UnitOrder, Units
from penstock.order.schedule import MixSchedule
from penstock.order.sequential import EndToEnd
from penstock.order.streams import StreamOrder
from penstock.order.weights import apportion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.order.options import OrderOptions, StreamShards
    from penstock.types import Int64Array


class EpochOrder(Protocol):
    """Positions of an epoch → ids, over all streams."""

    def size(self, epoch: int) -> int:
        """Count the positions of an epoch."""

    def ids(self, epoch: int, positions: range) -> Int64Array:
        """Return the ids at evenly spaced positions of an epoch; −1 for those of a stream that is gone."""

    def taken(self, epoch: int, versions: Sequence[Version], position: int) -> dict[str, int]:
        """Count what each stream gives before a position or unit, if an epoch is planned like this."""


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
    firsts = np.cumsum([0, *(stream.num_samples for stream in streams)])
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
    seed, shuffle = options.seed, options.shuffle
    if options.batching_method == "random":
        laid = lay_streams(streams, windows, options, num_lanes)
        if not shuffle and options.schedule is None:
            return EndToEnd(laid, num_lanes=num_lanes, seed=seed, versions_of=versions_of)
        return MixedOrder(
            laid,
            num_lanes=num_lanes,
            block_rows=MIX_ROWS,
            seed=seed,
            versions_of=versions_of,
            mix_of=mix_of,
            is_shuffled=shuffle,
        )
    # Whole rows of lanes make up each global batch, for any number of nodes that divides lanes and batch.
    batch_size = options.global_batch_size or 1
    num_lanes = math.gcd(num_lanes, batch_size)
    units = units_of(options, num_lanes)
    if units is None:
        return MixedOrder(
            lay_streams(streams, windows, options, num_lanes),
            num_lanes=num_lanes,
            block_rows=batch_size // num_lanes,
            seed=seed,
            versions_of=versions_of,
            mix_of=mix_of,
            is_shuffled=shuffle,
        )
    lanes = units.num_lanes if units.per_batch > 1 else num_lanes
    laid = lay_streams(streams, windows, options, lanes)
    return UnitOrder(laid, units=units, seed=seed, versions_of=versions_of, mix_of=mix_of, is_shuffled=shuffle)
