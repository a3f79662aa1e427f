"""A plain loop over the `MDSWriter` of mosaicml-streaming, in .peers/mosaic, which reads the same Parquet files."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow.parquet as pq
from benchmarks.peers.common import Result, main
from streaming import MDSWriter


def run(directory: str, inputs: str, num_rows: int) -> Result:
    begin, worked = time.perf_counter(), time.process_time()
    left = num_rows
    with MDSWriter(out=directory, columns={"id": "int", "text": "str"}, compression="zstd") as writer:
        for path in sorted(Path(inputs).iterdir()):
            for batch in pq.ParquetFile(path).iter_batches(1024):
                rows = batch.to_pylist()[:left]  # a part of all is enough to know its rate
                left -= len(rows)
                for row in rows:
                    writer.write(row)
            if not left:
                break
    worked = time.process_time() - worked
    return {"samples": num_rows, "seconds": time.perf_counter() - begin, "cpu_seconds": worked}


if __name__ == "__main__":
    main({"run": run})
