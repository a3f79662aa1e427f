"""`IterableDataset` of Hugging Face over the files that sources read: samples one by one, and batches."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.common import Result, main
from benchmarks.peers.source_runs import BATCH, count_batches, count_rows, fields_of, timed_passes
from datasets import load_dataset

KINDS = {"parquet": "parquet", "arrow": "arrow", "jsonl": "json", "csv": "csv", "txt": "text"}


def open_dataset(path: str) -> Any:
    return load_dataset(KINDS[path.rsplit(".", 1)[1]], data_files=[path], split="train", streaming=True)


def rows(path: str, seconds: float) -> Result:
    dataset = open_dataset(path)
    return timed_passes(lambda: count_rows(dataset), seconds)


def loader(path: str, seconds: float, buffer: int | None = None) -> Result:
    dataset = open_dataset(path)
    if buffer is not None:  # which makes it so slow that a whole pass would take a minute
        dataset = dataset.shuffle(seed=1, buffer_size=buffer).take(2 * buffer)
    batches = dataset.with_format("numpy").batch(BATCH, drop_last_batch=True)
    return timed_passes(lambda: count_batches(batches, fields_of(path)[0]), seconds)


if __name__ == "__main__":
    main({"rows": rows, "loader": loader})
