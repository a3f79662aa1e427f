"""penstock with its default settings, at any number of samples and shards."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.peers.common import BATCH, Result
from benchmarks.peers.scaling import answer, private_mb

from penstock import StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Iterable


def open_samples(directory: str, state: Any) -> Iterable[Any]:
    dataset = StreamingDataset(local=directory, shuffle=True, batch_size=BATCH)
    if state is not None:
        dataset.load_state_dict(state)
    return dataset


def make_state(directory: str, at: int) -> Any:
    dataset = StreamingDataset(local=directory, shuffle=True, batch_size=BATCH)
    next(iter(dataset))  # a pass has begun
    return dataset.state_dict(at)


def open_index(directory: str) -> Result:
    """Open the dataset and read nothing of it."""
    before, begin = private_mb(), time.perf_counter()
    dataset = StreamingDataset(local=directory, shuffle=True, batch_size=BATCH)
    num_samples, seconds = len(dataset), time.perf_counter() - begin
    return {"samples": num_samples, "seconds": seconds, "private_mb": private_mb() - before}


if __name__ == "__main__":
    answer(open_samples, make_state, open_index=open_index)
