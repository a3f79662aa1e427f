"""mosaicml-streaming from a store, in .peers/mosaic. It reads the very files that penstock reads.

Its forked workers inherit the connection over which the main process fetched the index. Where there is latency, both
of them use it at once, and each gets the other's bytes, or waits for a minute. So that it can be measured at all, that
client is put away before the workers start; nothing else is changed.
"""

from __future__ import annotations

from typing import Any

from benchmarks.peers.common import BATCH, Result, main
from benchmarks.peers.remote import BUCKET, run_cold, run_first, use_store
from benchmarks.peers.streaming import WORKERS
from streaming import StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader


def loader(endpoint: str, key: str, directory: str, column: str, seconds: float) -> Result:
    use_store(endpoint)
    clean_stale_shared_memory()

    def batches() -> Any:
        dataset = StreamingDataset(remote=f"s3://{BUCKET}/{key}", local=directory, shuffle=True, batch_size=BATCH)
        for stream in dataset.streams:
            stream._downloader._s3_client = None
        return DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)

    return run_cold(batches, column, seconds)


def first_sample(endpoint: str, key: str, directory: str, shuffled: bool) -> Result:
    use_store(endpoint)
    clean_stale_shared_memory()
    remote = f"s3://{BUCKET}/{key}"
    return run_first(lambda: StreamingDataset(remote=remote, local=directory, shuffle=shuffled, batch_size=BATCH))


if __name__ == "__main__":
    main({"loader": loader, "first_sample": first_sample})
