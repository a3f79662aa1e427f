"""litdata from a store, in .peers/litdata.

Its reader of S3 refuses addresses without TLS and has no setting for them: the one client option that allows them is
added here, and nothing else is changed.
"""

from __future__ import annotations

from typing import Any

from benchmarks.peers.common import BATCH, Result, main
from benchmarks.peers.remote import BUCKET, KEYS, run_cold, run_first, use_store
from benchmarks.peers.streaming import WORKERS
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming import downloader


def open_dataset(endpoint: str, key: str, directory: str, shuffled: bool) -> StreamingDataset:
    use_store(endpoint)
    downloader._OBSTORE_CLIENT_OPTIONS = {**(downloader._OBSTORE_CLIENT_OPTIONS or {}), "allow_http": True}
    options = {
        "endpoint_url": endpoint,
        "aws_access_key_id": KEYS["key"],
        "aws_secret_access_key": KEYS["secret"],
        "region_name": "us-east-1",
    }
    return StreamingDataset(f"s3://{BUCKET}/{key}", cache_dir=directory, shuffle=shuffled, storage_options=options)


def loader(endpoint: str, key: str, directory: str, column: str, seconds: float, shuffled: bool = True) -> Result:
    def batches() -> Any:
        dataset = open_dataset(endpoint, key, directory, shuffled)
        return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)

    return run_cold(batches, column, seconds)


def first_sample(endpoint: str, key: str, directory: str, shuffled: bool) -> Result:
    return run_first(lambda: open_dataset(endpoint, key, directory, shuffled))


if __name__ == "__main__":
    main({"loader": loader, "first_sample": first_sample})
