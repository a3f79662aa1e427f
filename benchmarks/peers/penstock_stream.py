"""penstock's StreamingDataset and loader, in the environment that runs the benchmark, which needs torch."""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING, Any

import torch  # loaded before any clock starts, as in a training script
from benchmarks.peers.common import BATCH, Result, main
from benchmarks.peers.streaming import (
    WORKERS,
    check_samples,
    peak_memory,
    timed_batches,
    timed_samples,
)
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from penstock import StreamingDataset


def open_shuffled(directory: str, **options: Any) -> StreamingDataset:
    from penstock import StreamingDataset

    return StreamingDataset(local=directory, shuffle=True, batch_size=BATCH, **options)


def one_by_one(directory: str, kind: str, count: int, seconds: float) -> Result:
    check_samples(kind, iter(open_shuffled(directory)), count)
    dataset = open_shuffled(directory)
    return timed_samples(lambda: dataset, seconds)


def overridden(directory: str, seconds: float) -> Result:
    """A subclass as users write them: it takes the sample and changes something."""
    from penstock import StreamingDataset

    class Shorter(StreamingDataset):
        def get_item(self, sample_id: int) -> Any:
            sample = super().get_item(sample_id)
            sample["length"] = len(sample["text"])
            return sample

    dataset = Shorter(local=directory, shuffle=True, batch_size=BATCH)
    if next(iter(dataset))["length"] != 200:
        raise SystemExit("get_item was not called")
    return timed_samples(lambda: dataset, seconds)


def columnar(directory: str, column: str, seconds: float) -> Result:
    dataset = open_shuffled(directory, columnar=True)
    return timed_batches(lambda: dataset, seconds, column)


def images(directory: str, count: int, seconds: float) -> Result:
    dataset = open_shuffled(directory, image_decoder="array")
    if next(iter(dataset))["image"].ndim != 3:
        raise SystemExit("images are no arrays")
    return timed_samples(lambda: dataset, seconds, chunk=min(64, count))


def stock_loader(directory: str, column: str, seconds: float) -> Result:
    dataset = open_shuffled(directory)
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    return timed_batches(lambda: loader, seconds, column)


def own_loader(directory: str, column: str, seconds: float, workers: int = 0) -> Result:
    from penstock import StreamingDataLoader

    loader = StreamingDataLoader(open_shuffled(directory), columnar=True, num_workers=workers)
    batch = next(iter(loader))
    if not isinstance(batch[column], torch.Tensor):
        raise SystemExit(f"{column} is no tensor")
    return timed_batches(lambda: loader, seconds, column)


def columnar_images(directory: str, count: int, seconds: float, workers: int = 0) -> Result:
    """Images by column, and the memory that they add to a process that has loaded everything."""
    from penstock import StreamingDataLoader

    dataset = open_shuffled(directory, image_decoder="array")
    loader = StreamingDataLoader(dataset, batch_size=min(BATCH, count), columnar=True, num_workers=workers)
    before = peak_mb()
    result = timed_batches(lambda: loader, seconds, "image")
    return {**result, "added_mb": peak_mb() - before}


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def in_order(directory: str, seconds: float) -> Result:
    """Rows as they lie, by column, and the share of the time that goes into finding out which ones come next."""
    from penstock import StreamingDataset
    from penstock.reading.schedule import BatchSchedule

    dataset = StreamingDataset(local=directory, shuffle=False, batch_size=BATCH, columnar=True)
    spent = 0.0
    ids = BatchSchedule.ids

    def timed_ids(self: BatchSchedule, turns: range) -> Any:
        nonlocal spent
        begin = time.perf_counter()
        found = ids(self, turns)
        spent += time.perf_counter() - begin
        return found

    BatchSchedule.ids = timed_ids  # type: ignore[method-assign]
    begin = time.perf_counter()
    result = timed_batches(lambda: dataset, seconds, "id")
    return {**result, "order_share": spent / (time.perf_counter() - begin)}


def memory(directory: str, seconds: float) -> Result:
    loader = DataLoader(open_shuffled(directory), batch_size=BATCH, num_workers=WORKERS)
    return peak_memory(loader, seconds)


def first_batch(directory: str, workers: int) -> Result:
    """From before `import penstock` to the first whole batch in hand, with torch loaded."""
    begin = time.perf_counter()
    from penstock import StreamingDataLoader

    loader = StreamingDataLoader(open_shuffled(directory), num_workers=workers)
    iterator = iter(loader)
    batch = next(iterator)
    seconds = time.perf_counter() - begin
    if len(batch["id"]) != BATCH:
        raise SystemExit("the first batch is not whole")
    return {"samples": BATCH, "seconds": seconds}


if __name__ == "__main__":
    main(
        {
            "one_by_one": one_by_one,
            "overridden": overridden,
            "columnar": columnar,
            "images": images,
            "columnar_images": columnar_images,
            "in_order": in_order,
            "stock_loader": stock_loader,
            "own_loader": own_loader,
            "memory": memory,
            "first_batch": first_batch,
        }
    )
