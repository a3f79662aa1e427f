"""The ids of one epoch in the order in which they are dealt, for streams that are shuffled together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.order.mosaic.ids import IdArray, look_up
from penstock.order.mosaic.intervals import ShuffleRule
from penstock.order.mosaic.partition import list_positions
from penstock.order.mosaic.sampling import SamplingRule, Shards, resample
from penstock.order.mosaic.shuffle import shuffle_algorithm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.order.mosaic.rules import MosaicRules
    from penstock.order.mosaic.weights import StreamShare


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedStream:
    """One stream of a mix: its shards and what it gives to every epoch."""

    shards: Shards
    share: StreamShare


def list_ids(
    streams: Sequence[WeightedStream], rules: MosaicRules, epoch: int, *, num_nodes: int, block_size: int
) -> IdArray:
    """Return the epoch's sample ids in the order in which so many nodes are dealt them."""
    sampled = resample(
        [stream.shards for stream in streams],
        [stream.share.choose for stream in streams],
        SamplingRule(
            seed=rules.shuffle_seed,
            epoch=epoch,
            granularity=rules.sampling_granularity,
            is_balanced=rules.sampling_method == "balanced",
            is_shuffled=rules.shuffle_algo is not None,
            is_release_0_5=rules.is_release_0_5,
        ),
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
