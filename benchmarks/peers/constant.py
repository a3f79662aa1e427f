"""The same DataLoader over samples that lie in memory: what torch itself costs, whichever library reads the data.

One sample again and again costs less than data ever can: its values are in the processor's cache, and a text that comes
256 times in a batch crosses to the other process once. Many samples in turn cost what different values cost.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from benchmarks.peers.common import BATCH, Result, Sample, main, make_samples
from benchmarks.peers.streaming import WORKERS, peak_memory, timed_batches
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

if TYPE_CHECKING:
    from collections.abc import Iterator


class Constant(IterableDataset[Any]):
    """Gives the same samples in turn, as many as the worker's share of the dataset has."""

    def __init__(self, samples: list[Sample], count: int) -> None:
        self.samples = samples
        self.count = count

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        share = self.count // (worker.num_workers if worker is not None else 1)
        return islice(cycle(self.samples), share)


def stock_loader(kind: str, count: int, column: str, seconds: float, num_samples: int = 1) -> Result:
    samples = make_samples(kind, num_samples)
    loader = DataLoader(Constant(samples, count), batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    return timed_batches(lambda: loader, seconds, column)


def memory(seconds: float) -> Result:
    loader = DataLoader(Constant([{"id": 0}], 1 << 60), batch_size=BATCH, num_workers=WORKERS)
    return peak_memory(loader, seconds)


if __name__ == "__main__":
    main({"stock_loader": stock_loader, "memory": memory})
