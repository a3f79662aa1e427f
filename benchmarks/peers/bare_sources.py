"""The libraries that sources stand on, alone: the least that reading these files takes."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow.parquet as pq
from benchmarks.peers.common import Result, main
from benchmarks.peers.source_runs import BATCH, TOKENS_PER_LIST, timed_passes


def arrow_to_numpy(path: str, seconds: float) -> Result:
    """Batches of token lists, each an array of its own."""

    def read() -> int:
        count = 0
        for batch in pq.ParquetFile(path).iter_batches(BATCH):
            count += len(batch.column(0).values.to_numpy().reshape(-1, TOKENS_PER_LIST).copy())
        return count

    return timed_passes(read, seconds)


def arrow_to_dicts(path: str, seconds: float) -> Result:
    def read() -> int:
        return sum(len(batch.to_pylist()) for batch in pq.ParquetFile(path).iter_batches(1024))

    return timed_passes(read, seconds)


def json_lines(path: str, seconds: float) -> Result:
    """The parser that sources of JSON use, line by line."""
    from msgspec.json import Decoder

    decode = Decoder().decode

    def read() -> int:
        count = 0
        for line in io.BytesIO(Path(path).read_bytes()):
            decode(line)
            count += 1
        return count

    return timed_passes(read, seconds)


if __name__ == "__main__":
    main({"arrow_to_numpy": arrow_to_numpy, "arrow_to_dicts": arrow_to_dicts, "json_lines": json_lines})
