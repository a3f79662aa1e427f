"""Hugging Face datasets streaming Parquet from a store, in .peers/hf."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.common import BATCH, Result, main
from benchmarks.peers.hf import BUFFER
from benchmarks.peers.remote import BUCKET, KEYS, run_cold, run_first, use_store
from benchmarks.peers.streaming import WORKERS
from datasets import load_dataset
from torch.utils.data import DataLoader


def open_dataset(endpoint: str, keys: list[str], shuffled: bool) -> Any:
    use_store(endpoint)
    options = {**KEYS, "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"}}
    dataset = load_dataset(
        "parquet",
        data_files=[f"s3://{BUCKET}/{key}" for key in keys],
        split="train",
        streaming=True,
        storage_options=options,
    )
    return dataset.shuffle(seed=0, buffer_size=BUFFER) if shuffled else dataset


def first_sample(endpoint: str, keys: list[str], shuffled: bool) -> Result:
    return run_first(lambda: open_dataset(endpoint, keys, shuffled))


def loader(endpoint: str, keys: list[str], column: str, seconds: float) -> Result:
    def batches() -> Any:
        dataset = open_dataset(endpoint, keys, True)
        dataset = dataset.with_format("numpy") if column == "tokens" else dataset
        return DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)

    return run_cold(batches, column, seconds)


if __name__ == "__main__":
    main({"loader": loader, "first_sample": first_sample})
