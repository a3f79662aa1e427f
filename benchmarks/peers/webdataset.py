"""webdataset, in .peers/webdataset: one member a sample, JSON for rows and NumPy's format for tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import webdataset as wds
from benchmarks.peers.common import BATCH, Result, Sample, main, make_samples, timed
from benchmarks.peers.streaming import WORKERS, check_samples, timed_batches, timed_samples
from torch.utils.data import default_collate

NUM_SHARDS = 8
# What its documentation uses for shuffling.
BUFFER = 1000


def write(directory: str, kind: str, count: int, shards: int = NUM_SHARDS) -> Result:
    samples = make_samples(kind, count)
    Path(directory).mkdir(parents=True)
    pattern = str(Path(directory, "%05d.tar"))

    def work() -> int:
        with wds.ShardWriter(pattern, maxcount=-(-count // shards), verbose=0) as writer:
            for number, sample in enumerate(samples):
                value = {"json": sample} if kind == "rows" else {"npy": sample["tokens"]}
                writer.write({"__key__": f"{number:09}", **value})
        return count

    return timed(work)


def unwrap(sample: Sample) -> Any:
    return sample["json"] if "json" in sample else {"tokens": sample["npy"]}


def open_shuffled(urls: list[str]) -> Any:
    return wds.WebDataset(urls, shardshuffle=len(urls)).shuffle(BUFFER).decode().map(unwrap)


def one_by_one(directory: str, kind: str, count: int, seconds: float) -> Result:
    dataset = open_shuffled([str(path) for path in sorted(Path(directory).iterdir())])
    check_samples(kind, dataset, count)
    return timed_samples(lambda: dataset, seconds)


def loader(directory: str, column: str, seconds: float) -> Result:
    """Batches are made in the workers, as its documentation advises."""
    dataset = open_shuffled([str(path) for path in sorted(Path(directory).iterdir())])
    batches = wds.WebLoader(
        dataset.batched(BATCH, collation_fn=default_collate),
        batch_size=None,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    return timed_batches(lambda: batches, seconds, column)


if __name__ == "__main__":
    main({"write": write, "one_by_one": one_by_one, "loader": loader})
