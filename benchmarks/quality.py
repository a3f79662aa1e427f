"""How well an order shuffles, and what that costs, for any order given as the ids of an epoch.

Position p belongs to node `p % num_nodes`, as in every order here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from penstock.order.id_spans import IdSpans
    from penstock.types import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffling:
    """How far an epoch is from its stored order."""

    displacement: float  # mean distance between place in store and place in the epoch, of all samples
    neighbour_distance: float  # mean distance in the epoch between neighbours of one shard, of all samples
    neighbours_together: float  # share of such neighbours that meet in one global batch
    batch_distance: float  # mean total variation distance of a global batch from the mix of all shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a node reads and holds, in the mean and at worst over nodes."""

    shards_open: float  # mean over steps: first use made, last use to come
    peak_shards_held: int  # at any step of any node, those wanted within the prefetch distance included
    peak_new_shards: int  # that a node meets for the first time in one step, after the first
    first_shards: int  # that a node needs for its first step
    fetched: float  # bytes fetched / bytes needed, of the worst node; shards count as their number of samples


def measure_shuffling(ids: Int64Array, spans: IdSpans, global_batch_size: int) -> Shuffling:
    """Measure the shuffling of an epoch in which each sample occurs once."""
    size = len(ids)
    places = np.empty(spans.num_samples, dtype=np.int64)
    places[ids] = np.arange(size, dtype=np.int64)
    shards, _ = spans.locate(np.arange(spans.num_samples, dtype=np.int64))
    is_same_shard = shards[1:] == shards[:-1]
    distances = np.abs(np.diff(places))[is_same_shard]
    batches = places // global_batch_size
    meet = (batches[1:] == batches[:-1])[is_same_shard]
    return Shuffling(
        displacement=float(np.abs(places - np.arange(size)).mean() / size),
        neighbour_distance=float(distances.mean() / size) if len(distances) else 1.0,
        neighbours_together=float(meet.mean()) if len(meet) else 0.0,
        batch_distance=_batch_distance(shards[ids], spans, global_batch_size),
    )


def measure_traffic(
    ids: Int64Array, spans: IdSpans, global_batch_size: int, num_nodes: int, prefetch_steps: int
) -> Traffic:
    """Measure what each node reads in an epoch, and what it holds while it does."""
    shards, _ = spans.locate(ids)
    steps = np.arange(len(ids), dtype=np.int64) // global_batch_size
    lengths = np.diff(spans.starts)
    nodes = [
        _node_traffic(shards[node::num_nodes], steps[node::num_nodes], lengths, prefetch_steps)
        for node in range(num_nodes)
    ]
    return Traffic(
        shards_open=float(np.mean([node.shards_open for node in nodes])),
        peak_shards_held=max(node.peak_shards_held for node in nodes),
        peak_new_shards=max(node.peak_new_shards for node in nodes),
        first_shards=max(node.first_shards for node in nodes),
        fetched=max(node.fetched for node in nodes),
    )


def _node_traffic(shards: Int64Array, steps: Int64Array, lengths: Int64Array, prefetch_steps: int) -> Traffic:
    used, firsts = np.unique(shards, return_index=True)
    _, lasts = np.unique(shards[::-1], return_index=True)
    first, last = steps[firsts], steps[len(steps) - 1 - lasts]
    num_steps = int(steps[-1]) + 1
    new = np.bincount(first, minlength=num_steps)
    gone = np.bincount(last, minlength=num_steps)
    done = np.cumsum(gone) - gone
    ahead = np.minimum(np.arange(num_steps) + prefetch_steps, num_steps - 1)
    return Traffic(
        shards_open=float((np.cumsum(new) - done).mean()),
        peak_shards_held=int((np.cumsum(new)[ahead] - done).max()),
        peak_new_shards=int(new[1:].max()) if num_steps > 1 else 0,
        first_shards=int(new[0]),
        fetched=float(lengths[used].sum() / len(shards)),
    )


def _batch_distance(labels: Int64Array, spans: IdSpans, global_batch_size: int) -> float:
    """Take the shard as the class of a sample, and see how far batches are from the classes of all data."""
    truth = np.diff(spans.starts) / spans.num_samples
    num_batches = max(1, len(labels) // global_batch_size)
    distances = []
    for batch in range(num_batches):
        here = labels[batch * global_batch_size : (batch + 1) * global_batch_size]
        found, counts = np.unique(here, return_counts=True)
        # Classes that are absent differ by their whole share.
        present = np.abs(counts / len(here) - truth[found]).sum()
        distances.append((present + 1.0 - truth[found].sum()) / 2)
    return float(np.mean(distances))
