"""What a shuffle buffer of a size costs in memory, and how well it mixes sorted data: the table of docs/sources.md.

python benchmarks/shuffle_buffer.py

100 Parquet files of 2000 samples: a number, which says where the sample lies, and 256 tokens (1 kB).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from penstock import AsyncDataLoader, ParquetShardedSource

FILES, ROWS, TOKENS, BATCH = 100, 2000, 256, 256
SIZES = (None, 1000, 10_000, 100_000)


def write(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tokens = np.random.default_rng(0).integers(0, 50_000, ROWS * TOKENS, dtype=np.int32)
    bounds = np.arange(0, len(tokens) + 1, TOKENS, dtype=np.int32)
    for number in range(FILES):
        ids = np.arange(ROWS) + number * ROWS
        table = pa.table({"id": ids, "input_ids": pa.ListArray.from_arrays(bounds, tokens)})
        pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=500)


def run(folder: str, size: int | None, makes_samples: bool) -> dict[str, float]:
    """One pass: how many shards a batch has samples of, how many neighbours stay together, the most memory."""
    source: Any = ParquetShardedSource(folder)
    source = source.map(dict) if makes_samples else source
    ids, shards = [], []
    for batch in AsyncDataLoader(source, BATCH, shuffle_buffer_size=size, seed=1):
        ids.append(batch["id"])
        shards.append(len(set((batch["id"] // ROWS).tolist())))
    steps = np.abs(np.diff(np.concatenate(ids)))
    status = Path("/proc/self/status").read_text()
    peak_mb = int(status.split("VmHWM:")[1].split()[0]) / 1000
    return {"shards": float(np.mean(shards)), "near": float((steps <= 100).mean()), "peak_mb": peak_mb}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        found: dict[tuple[int | None, bool], dict[str, float]] = {}
        for size in SIZES:
            for makes_samples in (False, True):
                command = [sys.executable, __file__, folder, json.dumps([size, makes_samples])]
                found[size, makes_samples] = json.loads(subprocess.check_output(command, text=True))
    print("| buffer | memory, MB | memory with transforms, MB | shards in a batch | neighbours next |")
    for size in SIZES:
        columns, samples = found[size, False], found[size, True]
        extra = [each["peak_mb"] - found[None, False]["peak_mb"] for each in (columns, samples)]
        print(f"| {size} | {extra[0]:.0f} | {extra[1]:.0f} | {columns['shards']:.0f} | {columns['near']:.3%} |")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(run(sys.argv[1], *json.loads(sys.argv[2]))))
    else:
        main()
