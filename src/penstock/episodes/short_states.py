"""States of a few numbers, which training loops count themselves, as states of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.order.state_fields import COUNT, check_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.data.dataset import StreamingDataset

_KIND = "a dataset of robot episodes"


def state_from_counts(dataset: StreamingDataset, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Complete a state of two numbers; any other one is given back as it is."""
    if not isinstance(state, dict):
        return state
    if set(state) == {"epoch", "samples"}:
        check_fields(state, {"epoch": COUNT, "samples": COUNT}, _KIND)
        epoch, samples = state["epoch"], state["samples"]
    elif "batches_consumed" in state:
        counted = {"batch_size": dataset.batch_size, **state}
        check_fields(counted, {"batches_consumed": COUNT, "batch_size": COUNT}, _KIND)
        epoch, num_ranks = dataset.next_epoch, dataset.run.seat().world.num_ranks
        samples = counted["batches_consumed"] * counted["batch_size"] * num_ranks
    else:
        return state
    return {**dataset.run.describe_order(), "epoch": epoch, "position": min(samples, int(dataset.epoch_size))}
