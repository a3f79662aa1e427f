"""States of a few numbers, which training loops count themselves, as states of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ResumeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.data.dataset import StreamingDataset


def state_from_counts(dataset: StreamingDataset, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Complete a state of two numbers; any other one is given back as it is."""
    if not isinstance(state, dict):
        return state
    if set(state) == {"epoch", "samples"}:
        epoch, samples = _whole(state, "epoch"), _whole(state, "samples")
    elif "batches_consumed" in state:
        epoch, batch_size = dataset.next_epoch, {"batch_size": dataset.batch_size, **state}
        num_ranks = dataset.run.seat().world.num_ranks
        samples = _whole(state, "batches_consumed") * _whole(batch_size, "batch_size") * num_ranks
    else:
        return state
    return {**dataset.run.describe_order(), "epoch": epoch, "position": min(samples, int(dataset.epoch_size))}


def _whole(state: Mapping[str, Any], name: str) -> int:
    value = state[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ResumeError(f"{name}={value!r} of the state must be a whole number: load the state as saved")
    return value
