"""webdataset from a store, in .peers/webdataset: it reads HTTP addresses with curl."""

from __future__ import annotations

from typing import Any

import webdataset as wds
from benchmarks.peers.common import BATCH, Result, main
from benchmarks.peers.remote import BUCKET, run_cold, run_first
from benchmarks.peers.streaming import WORKERS
from benchmarks.peers.webdataset import open_shuffled
from torch.utils.data import default_collate


def first_sample(endpoint: str, keys: list[str], shuffled: bool) -> Result:
    urls = [f"{endpoint}/{BUCKET}/{key}" for key in keys]
    return run_first(lambda: open_shuffled(urls) if shuffled else wds.WebDataset(urls, shardshuffle=False).decode())


def loader(endpoint: str, keys: list[str], column: str, seconds: float) -> Result:
    def batches() -> Any:
        dataset = open_shuffled([f"{endpoint}/{BUCKET}/{key}" for key in keys])
        return wds.WebLoader(dataset.batched(BATCH, collation_fn=default_collate), batch_size=None, num_workers=WORKERS)

    return run_cold(batches, column, seconds)


if __name__ == "__main__":
    main({"loader": loader, "first_sample": first_sample})
