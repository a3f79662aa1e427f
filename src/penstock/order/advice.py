"""What a world or a cache limit means for a plan: said with numbers, and never by changing the order."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import CacheTooSmallError
from penstock.order.conveyor import Pace
from penstock.units import format_bytes

if TYPE_CHECKING:
    from penstock.order.native import StreamPlan
    from penstock.order.world import World
    from penstock.types import Int64Array

# With fewer shards open over all lanes, batches show which shards they come from.
_FEW_SHARDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a plan keeps open: shards over all lanes, and shards on each node of a world."""

    shards_open: int
    shards_per_node: int
    lanes_per_node: int


def measure_footprint(plan: StreamPlan, world: World) -> Footprint:
    """Count the shards that are open at once, those about to come included."""
    num_lanes, num_nodes = plan.num_lanes, world.num_nodes
    # Nodes that do not divide the lanes meet every lane, unless lanes divide the nodes.
    lanes_per_node = num_lanes // num_nodes if num_lanes % num_nodes == 0 else num_lanes
    if num_nodes % num_lanes == 0:
        lanes_per_node = 1
    per_lane = sum(_open_in_lane(plan, number) for number in range(len(plan.streams)))
    num_shards = sum(int(np.count_nonzero(stream.lengths)) for stream in plan.streams)
    return Footprint(
        shards_open=min(num_shards, per_lane * num_lanes),
        shards_per_node=min(num_shards, per_lane * lanes_per_node),
        lanes_per_node=lanes_per_node,
    )


def check_world(plan: StreamPlan, world: World) -> None:
    """Warn if a world or the settings cost locality or shuffling; the order stays what it is."""
    if plan.epoch_size(0) < world.num_ranks and plan.options.epoch_end == "pad":
        warnings.warn(
            f"an epoch has {plan.epoch_size(0)} samples for {world.num_ranks} ranks, so ranks share samples:"
            " check that the dataset is as large as it should be",
            stacklevel=2,
        )
    footprint = measure_footprint(plan, world)
    num_lanes, num_nodes = plan.num_lanes, world.num_nodes
    fetched_by = footprint.lanes_per_node * num_nodes / num_lanes
    if fetched_by > 1 and plan.options.shuffle:
        warnings.warn(
            f"{num_nodes} nodes do not divide {num_lanes} lanes, so each shard is fetched by up to "
            f"{fetched_by:.0f} nodes: start the run with num_canonical_nodes={num_nodes}, or use a number of "
            f"nodes that divides {num_lanes}",
            stacklevel=2,
        )
    num_shards = sum(int(np.count_nonzero(stream.lengths)) for stream in plan.streams)
    if plan.options.shuffle and footprint.shards_open < min(_FEW_SHARDS, num_shards):
        warnings.warn(
            f"samples are shuffled among {footprint.shards_open} of {num_shards} shards at a time: raise "
            "shuffle_block_size, or leave it out",
            stacklevel=2,
        )


def check_cache(plan: StreamPlan, world: World, cache_bytes: int, shard_bytes: Int64Array) -> None:
    """Refuse a cache limit of a node that cannot hold what is open at once."""
    footprint = measure_footprint(plan, world)
    largest = np.sort(shard_bytes)[::-1][: footprint.shards_per_node]
    # As many shards of mean size as are open, or the few largest: whichever is more has to fit.
    mean = float(np.mean(shard_bytes)) if len(shard_bytes) else 0.0
    needed = int(max(mean * footprint.shards_per_node, largest[:4].sum()))
    if cache_bytes < needed:
        raise CacheTooSmallError(
            f"cache limit {format_bytes(cache_bytes)} is below the {format_bytes(needed)} "
            f"({footprint.shards_per_node} shards) that each node keeps open: raise cache_limit, or lower "
            "shuffle_block_size",
            cache_bytes=cache_bytes,
            needed_bytes=needed,
        )


def _open_in_lane(plan: StreamPlan, number: int) -> int:
    if not plan.options.shuffle:
        return 1
    stream = plan.streams[number]
    window = plan.windows[stream.name]
    num_shards = max(1, int(np.count_nonzero(stream.lengths)))
    return window + Pace.fit(window, num_shards, stream.num_samples / num_shards).bundle
