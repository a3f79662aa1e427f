"""What MosaicML Streaming works out by itself beside the order: the recorded cases hold it, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.order.mosaic.plan import MosaicPlan
    from penstock.order.mosaic.rules import MosaicOptions
    from penstock.order.world import World


def resolve_batch_size(options: MosaicOptions) -> int:
    """Return the number of samples that a rank takes at a time: release 0.5 has a default."""
    if options.batch_size is None:
        assert options.is_release_0_5
        return 1
    return options.batch_size


def resolve_predownload(options: MosaicOptions, num_canonical_nodes: int) -> int:
    """Return how many samples ahead a worker fetches."""
    if options.predownload is not None:
        return options.predownload
    if options.is_release_0_5:
        if options.batch_size is None:
            return 512
        return max(options.batch_size, 256 * options.batch_size // num_canonical_nodes)
    return 64 if options.batch_size is None else 8 * options.batch_size


def samples_per_rank(plan: MosaicPlan, world: World) -> int:
    """Return the length that the dataset of one rank has, without repeats."""
    return -(-plan.epoch_size(0) // world.num_ranks)
