"""A plain loop over the `MDSWriter` of mosaicml-streaming, in .peers/mosaic. Rows come from memory: reading is free."""

from __future__ import annotations

import time

from benchmarks.convert import texts_of
from benchmarks.peers.common import Result, main
from streaming import MDSWriter


def run(directory: str, num_rows: int) -> Result:
    rows = [{"id": number, "text": text} for number, text in enumerate(texts_of(0, num_rows))]
    begin, worked = time.perf_counter(), time.process_time()
    with MDSWriter(out=directory, columns={"id": "int", "text": "str"}, compression="zstd") as writer:
        for row in rows:
            writer.write(row)
    worked = time.process_time() - worked
    return {"samples": num_rows, "seconds": time.perf_counter() - begin, "cpu_seconds": worked}


if __name__ == "__main__":
    main({"run": run})
