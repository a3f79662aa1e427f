"""Hugging Face datasets streaming Parquet from a store, in .peers/hf."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.common import BATCH, Result, main
from benchmarks.peers.hf import BUFFER
from benchmarks.peers.remote import BUCKET, KEYS, run_cold, use_store
from benchmarks.peers.streaming import WORKERS
from datasets import load_dataset
from torch.utils.data import DataLoader


def loader(endpoint: str, keys: list[str], column: str, seconds: float) -> Result:
    use_store(endpoint)
    options = {**KEYS, "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"}}

    def batches() -> Any:
        dataset = load_dataset(
            "parquet",
            data_files=[f"s3://{BUCKET}/{key}" for key in keys],
            split="train",
            streaming=True,
            storage_options=options,
        )
        dataset = dataset.shuffle(seed=0, buffer_size=BUFFER)
        dataset = dataset.with_format("numpy") if column == "tokens" else dataset
        return DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)

    return run_cold(batches, column, seconds)


if __name__ == "__main__":
    main({"loader": loader})
