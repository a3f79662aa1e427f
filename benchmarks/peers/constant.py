"""The same DataLoader over one sample again and again: what torch itself costs, whoever reads the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers.common import BATCH, Result, Sample, main, make_samples
from benchmarks.peers.streaming import WORKERS, peak_memory, timed_batches
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

if TYPE_CHECKING:
    from collections.abc import Iterator


class Constant(IterableDataset[Any]):
    """Gives the same sample as often as the worker's share of the dataset has samples."""

    def __init__(self, sample: Sample, count: int) -> None:
        self.sample = sample
        self.count = count

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        share = self.count // (worker.num_workers if worker is not None else 1)
        for _ in range(share):
            yield self.sample


def stock_loader(kind: str, count: int, column: str, seconds: float) -> Result:
    [sample] = make_samples(kind, 1)
    loader = DataLoader(Constant(sample, count), batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    return timed_batches(lambda: loader, seconds, column)


def memory(seconds: float) -> Result:
    loader = DataLoader(Constant({"id": 0}, 1 << 60), batch_size=BATCH, num_workers=WORKERS)
    return peak_memory(loader, seconds)


if __name__ == "__main__":
    main({"stock_loader": stock_loader, "memory": memory})
