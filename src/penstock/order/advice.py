"""What a world or a cache limit means for a plan: said with numbers, and never by changing the order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import CacheTooSmallError
from penstock.order.conveyor import Pace
from penstock.order.options import window_of_block
from penstock.units import format_bytes, round_up_bytes
from penstock.user_warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.order.native import StreamPlan
    from penstock.order.world import World
    from penstock.types import Int64Array

# With fewer shards open over all lanes, batches show which shards they come from.
_FEW_SHARDS = 8
# A dataset of no more samples and bytes is read so quickly, and held so easily, that neither order nor traffic matter.
_SMALL_SAMPLES = 1 << 16
_SMALL_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a plan keeps open: shards over all lanes, and shards on each node of a world."""

    shards_open: int
    shards_per_node: int
    lanes_per_node: int

    def needed_bytes(self, shard_bytes: Int64Array) -> int:
        """Count what each node has to hold: as many shards of mean size as are open, or the few largest, if more."""
        if not len(shard_bytes):
            return 0
        largest = np.sort(shard_bytes)[::-1][: min(4, self.shards_per_node)]
        return int(max(float(np.mean(shard_bytes)) * self.shards_per_node, largest.sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRoom:
    """What a node may hold of what the fetcher brings: the limit, the size of each shard, and that of the indexes."""

    limit_bytes: int
    shard_bytes: Int64Array
    index_bytes: int = 0

    def needed_by(self, footprint: Footprint) -> int:
        """Count what all that is open at once takes, beside the indexes."""
        return footprint.needed_bytes(self.shard_bytes) + self.index_bytes

    def holds(self, footprint: Footprint) -> bool:
        """Return whether all that is open at once fits."""
        return self.needed_by(footprint) <= self.limit_bytes


def measure_footprint(plan: StreamPlan, world: World, windows: Mapping[str, int] | None = None) -> Footprint:
    """Count the shards that are open at once, those about to come included; with other windows than the plan's, so."""
    windows = plan.windows if windows is None else windows
    per_lane = sum(_open_in_lane(plan, number, windows) for number in range(len(plan.streams)))
    return _footprint(plan, world, plan.num_lanes, per_lane)


def _footprint(plan: StreamPlan, world: World, num_lanes: int, per_lane: int) -> Footprint:
    num_nodes, num_shards = world.num_nodes, _count_shards(plan)
    # Nodes that do not divide the lanes meet every lane, unless lanes divide the nodes.
    lanes_per_node = num_lanes // num_nodes if num_lanes % num_nodes == 0 else num_lanes
    if num_nodes % num_lanes == 0:
        lanes_per_node = 1
    return Footprint(
        shards_open=min(num_shards, per_lane * num_lanes),
        shards_per_node=min(num_shards, per_lane * lanes_per_node),
        lanes_per_node=lanes_per_node,
    )


def check_world(plan: StreamPlan, world: World, num_bytes: int = 0, room: CacheRoom | None = None) -> None:
    """Warn if a world or the settings cost locality or shuffling; the order stays what it is.

    A small dataset is never worth advice on either. `num_bytes` is its size, if that is known.
    """
    if plan.epoch_size(0) < world.num_ranks and plan.options.epoch_end == "pad":
        warn_user(
            f"an epoch has {plan.epoch_size(0)} samples for {world.num_ranks} ranks, so some ranks get the same"
            " samples: check that the dataset is as large as it should be"
        )
    if not plan.options.shuffle or (plan.spans.num_samples <= _SMALL_SAMPLES and num_bytes <= _SMALL_BYTES):
        return
    footprint = measure_footprint(plan, world)
    num_lanes, num_nodes = plan.num_lanes, world.num_nodes
    fetched_by = footprint.lanes_per_node * num_nodes / num_lanes
    if fetched_by > 1:
        warn_user(
            f"{num_nodes} nodes do not divide {num_lanes} lanes evenly, so each shard is fetched by up to"
            f" {fetched_by:.0f} nodes: start the run with num_canonical_nodes={num_nodes}, or use a number of"
            f" nodes that divides {num_lanes}"
        )
    num_shards = _count_shards(plan)
    if footprint.shards_open < min(_FEW_SHARDS, num_shards):
        warn_user(
            f"samples are shuffled among only {footprint.shards_open} of {num_shards} shards at a time:"
            f" {_how_to_shuffle_better(plan, world, room)}"
        )


def _how_to_shuffle_better(plan: StreamPlan, world: World, room: CacheRoom | None) -> str:
    """Name the smallest block that shuffles among enough shards, and the limit that holds it if this one does not."""
    enough = min(_FEW_SHARDS, _count_shards(plan))
    block_size = 1
    while (better := _with_block(plan, world, block_size)).shards_open < enough:
        unit = _two_digits_unit(2 * block_size)
        block_size = -(-2 * block_size // unit) * unit
    if room is None or room.holds(better):
        return f"set shuffle_block_size={block_size} or more"
    needed = round_up_bytes(room.needed_by(better))
    return (
        f"cache_limit={format_bytes(room.limit_bytes)} allows no more. For a better shuffle set "
        f'cache_limit="{needed}" and shuffle_block_size={block_size}'
    )


def check_cache(plan: StreamPlan, world: World, room: CacheRoom, *, is_resumed: bool = False) -> None:
    """Refuse a cache limit of a node that cannot hold what is open at once, and say which settings would fit.

    How many shards a run that goes on from a state keeps open is in the state: only the limit can change then.
    """
    footprint = measure_footprint(plan, world)
    if room.holds(footprint):
        return
    needed = room.needed_by(footprint)
    block_size = None if is_resumed or not plan.options.shuffle else largest_block_that_fits(plan, world, room)
    raise CacheTooSmallError(
        f"cache_limit={format_bytes(room.limit_bytes)} is less than the {format_bytes(needed)} that each node keeps "
        f'open at once ({footprint.shards_per_node} shards): set cache_limit="{round_up_bytes(needed)}" or more'
        f"{_how_to_need_less(plan, world, room, block_size, is_resumed=is_resumed)}",
        cache_bytes=room.limit_bytes,
        needed_bytes=needed,
        shuffle_block_size=block_size,
    )


def _how_to_need_less(
    plan: StreamPlan, world: World, room: CacheRoom, block_size: int | None, *, is_resumed: bool
) -> str:
    if is_resumed:
        return ", because the loaded state fixes how many shards that is"
    if block_size is not None:
        fits = _with_block(plan, world, block_size)
        return (
            f", or set shuffle_block_size={block_size}, which shuffles among {fits.shards_open} of"
            f" {_count_shards(plan)} shards at a time"
        )
    # Without shuffling, one shard of each stream is open in each lane.
    unshuffled = _footprint(plan, world, plan.options.num_canonical_nodes or 1, len(plan.streams))
    if plan.options.shuffle and room.holds(unshuffled):
        return ", or leave out shuffle=True: this limit has room for too few shards to shuffle among"
    return "; this limit is too small for these shards in any order"


def largest_block_that_fits(plan: StreamPlan, world: World, room: CacheRoom) -> int | None:
    """Return the largest `shuffle_block_size`, in two digits, that a new run can have within the limit, if any."""
    fits, too_large = 0, 1
    while room.holds(_with_block(plan, world, too_large)):
        fits, too_large = too_large, 2 * too_large
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        if room.holds(_with_block(plan, world, middle)):
            fits = middle
        else:
            too_large = middle
    return fits // _two_digits_unit(fits) * _two_digits_unit(fits) or None


def _with_block(plan: StreamPlan, world: World, block_size: int) -> Footprint:
    """Measure what the plan would keep open with another `shuffle_block_size`."""
    windows = {stream.name: window_of_block(stream.lengths, block_size) for stream in plan.streams}
    return measure_footprint(plan, world, windows)


def _two_digits_unit(number: int) -> int:
    unit: int = 10 ** max(0, len(str(number)) - 2)
    return unit


def _count_shards(plan: StreamPlan) -> int:
    return sum(int(np.count_nonzero(stream.lengths)) for stream in plan.streams)


def _open_in_lane(plan: StreamPlan, number: int, windows: Mapping[str, int]) -> int:
    if not plan.options.shuffle:
        return 1
    stream = plan.streams[number]
    window = windows[stream.name]
    num_shards = max(1, int(np.count_nonzero(stream.lengths)))
    return window + Pace.fit(window, num_shards, stream.num_samples / num_shards).bundle
