"""What a shuffle buffer of a size costs in memory, and how well it mixes sorted data: the tables of docs/sources.md.

python benchmarks/shuffle_buffer.py

100 Parquet files of 2000 samples: a number, which says where the sample lies, and 256 tokens (1 kB). Then numbers in
order through a buffer alone, beside the rule of `IterableDataset.shuffle` of Hugging Face's datasets and of EasyDeL's
loader, which is the same: fill the buffer, then give a random one for each that comes.
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
from penstock.sources.iterators import RowStage, SampleIterator
from penstock.sources.shuffling import ShuffledStage

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


def reservoir(count: int, size: int, seed: int) -> np.ndarray:
    """Return the order that the others make of so many samples."""
    draws, held, given = np.random.default_rng(seed), [*range(min(size, count))], []
    for number, place in zip(range(size, count), draws.integers(0, size, max(0, count - size)).tolist(), strict=True):
        given.append(held[place])
        held[place] = number
    draws.shuffle(held)
    return np.array(given + held)


def ours(count: int, size: int, seed: int) -> np.ndarray:
    """Return the order that a buffer of penstock makes."""
    rows = RowStage(lambda row: iter([[{"x": x} for x in range(row, count)]]))
    return np.array([sample["x"] for sample in SampleIterator(ShuffledStage(rows, num_rows=size, key=seed))])


def compare(count: int, size: int, num_seeds: int = 10) -> None:
    """Print a row: correlation with the input, and how far samples are from their places, for ours and for theirs."""
    row = []
    for order in (ours, reservoir):
        shifts = np.array([order(count, size, seed) for seed in range(num_seeds)]) - np.arange(count)
        correlations = [np.corrcoef(shift + np.arange(count), np.arange(count))[0, 1] for shift in shifts]
        row += [f"{np.mean(correlations):.3f}", f"{np.abs(shifts).mean():.1f}", f"{shifts.std():.1f}"]
    print(f"| {size} of {count} | {' | '.join(row)} |")


def main() -> None:
    print("| buffer | correlation | displacement | deviation | correlation, theirs | displacement | deviation |")
    for count, num_held in ((2000, 2), (2000, 8), (2000, 200), (2000, 1000), (2000, 2000), (20_000, 2000)):
        compare(count, num_held)
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
