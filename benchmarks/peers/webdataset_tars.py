"""webdataset on tars of a blob and a little JSON, in .peers/webdataset."""

from __future__ import annotations

from pathlib import Path

import webdataset as wds
from benchmarks.peers.common import BATCH, Result, main
from benchmarks.peers.streaming import check_samples, timed_samples
from benchmarks.peers.webdataset import BUFFER


def tars(directory: str, count: int, seconds: float) -> Result:
    urls = [str(path) for path in sorted(Path(directory).iterdir())]
    dataset = wds.WebDataset(urls, shardshuffle=len(urls)).shuffle(BUFFER).decode()
    check_samples("rows", (sample["json"] for sample in dataset), count)
    return timed_samples(lambda: dataset, seconds, chunk=BATCH)


if __name__ == "__main__":
    main({"tars": tars})
