"""`penstock.convert` from Parquet files to MDS, with some workers."""

from __future__ import annotations

import time

from benchmarks.peers.common import Result, main

import penstock


def run(directory: str, inputs: str, workers: int) -> Result:
    begin = time.perf_counter()
    report = penstock.convert(inputs, directory, compression="zstd", workers=workers, progress=False)
    return {"samples": report.num_rows, "seconds": time.perf_counter() - begin}


if __name__ == "__main__":
    main({"run": run})
