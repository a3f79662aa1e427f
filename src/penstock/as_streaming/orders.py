"""MosaicML Streaming's functions of an order, with its arguments; our arithmetic computes them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from penstock.errors import ConfigError
from penstock.order.cursor import Cursor
from penstock.order.make_plan import MOSAIC, make_plan
from penstock.order.mosaic.partition import Cluster, check_dropped, deal, dealing_cluster, list_positions
from penstock.order.mosaic.rules import MosaicState
from penstock.order.mosaic.sampling import choose_per_shard
from penstock.order.mosaic.shuffle import ShuffleRule, shuffle_algorithm
from penstock.order.plan import BATCHING_METHODS
from penstock.order.world import World as Nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.as_streaming.ranks import World
    from penstock.data.dataset import StreamingDataset
    from penstock.order.mosaic.plan import MosaicPlan
    from penstock.order.plan import BatchingMethod
    from penstock.types import Int64Array


def get_shuffle(
    algo: str,
    shard_sizes: Sequence[int] | Int64Array,
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> Int64Array:
    """Return the order of an epoch's samples by one of the algorithms."""
    rule = ShuffleRule(num_canonical_nodes=num_canonical_nodes, seed=seed, epoch=epoch, block_size=block_size)
    return shuffle_algorithm(algo)(np.asarray(shard_sizes, np.int64), rule).astype(np.int64)


get_shuffle_naive = partial(get_shuffle, "naive")
get_shuffle_py1b = partial(get_shuffle, "py1b")
get_shuffle_py1br = partial(get_shuffle, "py1br")
get_shuffle_py1e = partial(get_shuffle, "py1e")
get_shuffle_py1s = partial(get_shuffle, "py1s")
get_shuffle_py2s = partial(get_shuffle, "py2s")
shuffles = {name: partial(get_shuffle, name) for name in ("py1b", "py1br", "py1e", "py1s", "py2s", "naive")}


def get_partitions(
    algo: str,
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int | None = None,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> Int64Array:
    """Deal the positions of an epoch: `[node][rank][worker][batch][slot]`, -1 where a slot is empty."""
    cluster = Cluster(num_nodes=num_physical_nodes, ranks_per_node=ranks_per_node, batch_size=batch_size or 1)
    check_dropped(num_samples, drop_first, cluster.num_ranks)
    dealing = dealing_cluster(algo, num_canonical_nodes, cluster, initial_physical_nodes)
    listed = list_positions(num_samples, num_canonical_nodes, dealing.num_nodes)
    return deal(listed, drop_first, dealing, cluster).by_worker(workers_per_rank).astype(np.int64)


get_partitions_orig = partial(get_partitions, "orig")
get_partitions_relaxed = partial(get_partitions, "relaxed")
partitions = {"orig": get_partitions_orig, "relaxed": get_partitions_relaxed}


def get_sampling(
    samples_per_shard: Sequence[int] | Int64Array,
    choose: int,
    granularity: int,
    seed: int,
    epoch: int,
    use_epoch: bool = True,
) -> Int64Array:
    """Count how many samples each shard gives to an epoch of `choose` samples."""
    sizes = np.asarray(samples_per_shard, np.int64)
    return choose_per_shard(
        sizes, int(choose), granularity=granularity, seed=int(seed), epoch=int(epoch), draws_anew=use_epoch
    )


def generate_work(
    batching_method: BatchingMethod, dataset: StreamingDataset, world: World, epoch: int, sample_in_epoch: int
) -> Int64Array:
    """Deal what is left of an epoch in the original's order: `[node][rank][worker][batch][slot]`, -1 in empty slots."""
    if dataset.batch_size is None:
        raise ConfigError("generate_work deals batches: pass batch_size= to the StreamingDataset")
    planner, state = dataset.run.planner, dataset.run.passes.read().state
    nodes = Nodes(num_nodes=world.num_nodes, ranks_per_node=world.ranks_per_node)
    num_samples = dataset.batch_size * nodes.num_ranks
    plan, _ = make_plan(
        planner.streams,
        replace(planner.settings, order=MOSAIC, batching_method=batching_method, epoch_end="pad", schedule=None),
        world=nodes,
        global_batch_size=num_samples,
        state=None if state is None else MosaicState.from_dict(state).to_dict(),
    )
    batches = cast("MosaicPlan", plan).epoch_batches(Cursor(epoch, sample_in_epoch), nodes, num_samples)
    return batches.by_worker(world.workers_per_rank).astype(np.int64)


generate_work_random_batching = partial(generate_work, "random")
generate_work_stratified_batching = partial(generate_work, "stratified")
generate_work_per_stream_batching = partial(generate_work, "per_stream")
generate_work_device_per_stream_batching = partial(generate_work, "device_per_stream")
batching_methods = {method: partial(generate_work, method) for method in BATCHING_METHODS}
