"""MosaicML Streaming's functions of an order, with its arguments: our arithmetic computes them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from penstock.order.mosaic.intervals import ShuffleRule
from penstock.order.mosaic.partition import Cluster, check_dropped, deal, dealing_cluster, list_positions
from penstock.order.mosaic.shuffle import shuffle_algorithm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.types import Int64Array


def get_shuffle(
    algo: str,
    shard_sizes: Sequence[int] | Int64Array,
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> Int64Array:
    """Give the order of an epoch's samples by one of the algorithms."""
    rule = ShuffleRule(num_canonical_nodes=num_canonical_nodes, seed=seed, epoch=epoch, block_size=block_size)
    return shuffle_algorithm(algo)(np.asarray(shard_sizes, np.int64), rule).astype(np.int64)


get_shuffle_naive = partial(get_shuffle, "naive")
get_shuffle_py1b = partial(get_shuffle, "py1b")
get_shuffle_py1br = partial(get_shuffle, "py1br")
get_shuffle_py1e = partial(get_shuffle, "py1e")
get_shuffle_py1s = partial(get_shuffle, "py1s")
get_shuffle_py2s = partial(get_shuffle, "py2s")


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
