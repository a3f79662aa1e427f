"""One epoch in the order in which it is dealt: ids of streams that are shuffled together, or rows of batches.

Batches that respect streams are global batches of all of them or of one, or device batches of one. Each of these
methods shuffles its streams apart and returns the whole epoch as rows, one global batch each. Rows are in
order of nodes, then ranks, then slots. -1 marks an empty slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ConfigError
from penstock.order.mosaic.ids import EMPTY, IdArray, look_up
from penstock.order.mosaic.partition import Cluster, deal, dealing_cluster, even_out, list_positions
from penstock.order.mosaic.sampling import MosaicShards, resample
from penstock.order.mosaic.shuffle import ShuffleRule, shuffle_algorithm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.order.mosaic.rules import MosaicRules
    from penstock.order.mosaic.sampling import StreamShare


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedStream:
    """One stream of a mix: its shards and what it gives to every epoch."""

    shards: MosaicShards
    share: StreamShare


def list_ids(
    streams: Sequence[WeightedStream], rules: MosaicRules, epoch: int, *, num_nodes: int, block_size: int
) -> IdArray:
    """Return the epoch's sample ids in the order in which so many nodes are dealt them."""
    sampled = resample(
        [stream.shards for stream in streams],
        [stream.share.choose for stream in streams],
        rules,
        epoch,
    )
    order = None
    if rules.shuffle_algo is not None:
        order = shuffle_algorithm(rules.shuffle_algo)(
            sampled.units,
            ShuffleRule(
                num_canonical_nodes=rules.num_canonical_nodes,
                seed=rules.shuffle_seed,
                epoch=epoch,
                block_size=block_size,
            ),
        )
    listed = list_positions(
        sampled.num_samples,
        rules.num_canonical_nodes,
        num_nodes,
        num_ids=max(stream.shards.end_id for stream in streams),
        is_release_0_5=rules.is_release_0_5,
    )
    return look_up(listed, order, sampled.ids)


def stratified_rows(streams: Sequence[WeightedStream], rules: MosaicRules, epoch: int, cluster: Cluster) -> IdArray:
    """Lay out an epoch whose every global batch has the same number of samples of each stream."""
    counts = samples_per_batch([stream.share.proportion for stream in streams], cluster.global_batch_size)
    lists = [even_out(_list_stream(stream, rules, epoch, num_nodes=1), cluster.ranks_per_node) for stream in streams]
    num_rows = min(len(listed) // count for listed, count in zip(lists, counts, strict=True))
    return np.concatenate(
        [listed[: num_rows * count].reshape(num_rows, count) for listed, count in zip(lists, counts, strict=True)],
        axis=1,
    )


def samples_per_batch(proportions: Sequence[float], global_batch_size: int) -> list[int]:
    """Share the slots of a global batch out to streams, the largest fractions being rounded up."""
    wanted = global_batch_size * np.array(proportions, np.float64)
    counts = wanted.astype(np.int64)
    missing = global_batch_size - int(counts.sum())
    counts[np.flip(np.argsort(wanted - counts))[:missing]] += 1
    if (counts <= 0).any():
        stream_id = int(np.argmin(counts))
        raise ConfigError(
            f"stream {stream_id} has a proportion of {proportions[stream_id]:.3g}, less than one sample in a"
            f" global batch of {global_batch_size}: raise one of the two, or use batching_method='random'"
        )
    return [int(count) for count in counts]


def per_stream_rows(streams: Sequence[WeightedStream], rules: MosaicRules, epoch: int, cluster: Cluster) -> IdArray:
    """Lay out an epoch whose every global batch comes from one stream."""
    dealing = dealing_cluster(rules.partition_algo, rules.num_canonical_nodes, cluster, rules.initial_nodes)
    rows_of_streams = []
    for stream_id, stream in enumerate(streams):
        listed = _list_stream(stream, rules, epoch, num_nodes=dealing.num_nodes)
        by_rank = deal(listed, 0, dealing, cluster).stack()
        rows = by_rank.reshape(-1, cluster.global_batch_size)
        rows_of_streams.append(_full_rows(rows, stream_id, "global"))
    return _interleave(rows_of_streams, _generator_of_origins(rules, epoch))


def device_per_stream_rows(
    streams: Sequence[WeightedStream], rules: MosaicRules, epoch: int, cluster: Cluster
) -> IdArray:
    """Lay out an epoch whose every device batch, the share of one rank, comes from one stream."""
    num_nodes, ranks = cluster.num_nodes, cluster.ranks_per_node
    if rules.num_canonical_nodes % num_nodes:
        raise ConfigError(
            f"batching_method='device_per_stream' needs num_canonical_nodes={rules.num_canonical_nodes} to be a"
            f" multiple of the {num_nodes} nodes: change one of the two"
        )
    rows_of_nodes: list[list[IdArray]] = [[] for _ in range(num_nodes)]
    for stream_id, stream in enumerate(streams):
        if rules.shuffle_algo is not None and not _block_size_of(stream, rules):
            raise ConfigError(
                f"stream {stream_id} has a proportion of {stream.share.proportion:.3g}, too small for a share of"
                f" shuffle_block_size={rules.block_size}: raise one of the two"
            )
        listed = _list_stream(stream, rules, epoch, num_nodes=rules.num_canonical_nodes)
        rounds = even_out(listed.reshape(-1, rules.num_canonical_nodes), ranks)
        for node, of_node in enumerate(np.split(rounds, num_nodes, axis=1)):
            # In turn, each canonical node of this node gives one sample to every rank.
            entries = of_node.reshape(-1, ranks, of_node.shape[1]).transpose(0, 2, 1).reshape(-1)
            num_whole = len(entries) // cluster.batch_size * cluster.batch_size
            rows = entries[:num_whole].reshape(-1, cluster.batch_size)
            rows_of_nodes[node].append(_full_rows(rows, stream_id, "device"))
    draws = _generator_of_origins(rules, epoch)
    return _join_nodes([_interleave(rows, draws) for rows in rows_of_nodes], cluster)


def _list_stream(stream: WeightedStream, rules: MosaicRules, epoch: int, *, num_nodes: int) -> IdArray:
    block_size = _block_size_of(stream, rules)
    return list_ids([stream], rules, epoch, num_nodes=num_nodes, block_size=block_size)


def _block_size_of(stream: WeightedStream, rules: MosaicRules) -> int:
    return int(rules.block_size * stream.share.proportion)


def _full_rows(rows: IdArray, stream_id: int, kind: str) -> IdArray:
    num_full = int((rows != EMPTY).all(axis=1).sum())
    if not num_full:
        raise ConfigError(
            f"stream {stream_id} cannot fill a single {kind} batch of {rows.shape[1]}: lower batch_size or raise"
            " the weight of the stream"
        )
    return rows[:num_full]


def _generator_of_origins(rules: MosaicRules, epoch: int) -> np.random.Generator:
    return np.random.default_rng(rules.shuffle_seed + epoch if rules.draws_anew else rules.shuffle_seed)


def _interleave(rows_of_streams: Sequence[IdArray], draws: np.random.Generator) -> IdArray:
    """Put rows in random order of streams, those of one stream in their own order."""
    origins = np.repeat(np.arange(len(rows_of_streams)), [len(rows) for rows in rows_of_streams])
    draws.shuffle(origins)
    joined = np.empty(
        (len(origins), rows_of_streams[0].shape[1]), np.result_type(*(rows.dtype for rows in rows_of_streams))
    )
    for stream_id, rows in enumerate(rows_of_streams):
        joined[origins == stream_id] = rows
    return joined


def _join_nodes(rows_of_nodes: Sequence[IdArray], cluster: Cluster) -> IdArray:
    """Put the device batches of all nodes side by side, filling up nodes that have fewer with empty slots."""
    longest = max(len(rows) for rows in rows_of_nodes)
    # Even where it divides already, the original appends one more round of empty batches.
    num_rows = longest + cluster.num_ranks - longest % cluster.num_ranks
    dtype = np.result_type(*(rows.dtype for rows in rows_of_nodes))
    joined = np.full((num_rows, cluster.num_nodes, cluster.batch_size), EMPTY, dtype)
    for node, rows in enumerate(rows_of_nodes):
        joined[: len(rows), node] = rows
    return joined.reshape(-1, cluster.global_batch_size)


# For each batching method other than `random`, what lays out an epoch.
ROWS_BY_METHOD: dict[str, Callable[[Sequence[WeightedStream], MosaicRules, int, Cluster], IdArray]] = {
    "stratified": stratified_rows,
    "per_stream": per_stream_rows,
    "device_per_stream": device_per_stream_rows,
}
