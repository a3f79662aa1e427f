"""mosaicml-streaming's StreamingDataset, in .peers/mosaic. It reads the very files that penstock reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.peers.common import BATCH, Result, main
from benchmarks.peers.streaming import WORKERS, check_samples, peak_memory, timed_batches, timed_samples
from streaming import StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader


def open_shuffled(directory: str) -> Any:
    clean_stale_shared_memory()  # of runs that were ended before they could
    return StreamingDataset(local=directory, shuffle=True, batch_size=BATCH)


def one_by_one(directory: str, kind: str, count: int, seconds: float) -> Result:
    dataset = open_shuffled(directory)
    # Not the iterator: leaving one unfinished leaves its threads at work.
    check_samples(kind, (dataset[number] for number in range(BATCH)), count)
    return timed_samples(lambda: dataset, seconds)


def images(directory: str, count: int, seconds: float) -> Result:
    """Its images are Pillow's, decoded when they are looked at."""
    dataset = open_shuffled(directory)
    return timed_samples(lambda: (np.asarray(sample["image"]) for sample in dataset), seconds, chunk=min(64, count))


def stock_loader(directory: str, column: str, seconds: float) -> Result:
    loader = DataLoader(open_shuffled(directory), batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    return timed_batches(lambda: loader, seconds, column)


def memory(directory: str, seconds: float) -> Result:
    loader = DataLoader(open_shuffled(directory), batch_size=BATCH, num_workers=WORKERS)
    return peak_memory(loader, seconds)


if __name__ == "__main__":
    main({"one_by_one": one_by_one, "images": images, "stock_loader": stock_loader, "memory": memory})
