"""`block_mixture_interleave`: datasets of the Hugging Face library, sources or lists, mixed by weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.sources.hf import wrap_hf_dataset
from penstock.sources.mix.feeds import SOURCE_FIELD
from penstock.sources.mix.source import MixedShardedSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.sources.base import ShardedSource
    from penstock.sources.mix.source import StopStrategy


def block_mixture_interleave(
    datasets: Mapping[str, Any],
    weights: Mapping[str, float] | None = None,
    block_size: int = 1000,
    seed: int | None = 42,
    stop: StopStrategy = "restart",
) -> ShardedSource:
    """Mix datasets by weights, exactly at every sample; the samples do not say where they come from.

    See `MixedShardedSource`, whose arguments these are.
    """
    sources = {name: wrap_hf_dataset(dataset, name) for name, dataset in datasets.items()}
    return MixedShardedSource(sources, weights, block_size, seed, stop).drop_fields([SOURCE_FIELD])
