"""Writes a dataset, streams it from a store with a cache limit, is killed midway, resumes: nothing is lost.

Everything happens in `demo-data/`, with a store on this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from demo_store import DemoStore
from demo_training import BATCH_SIZE
from penstock import MDSWriter, StreamingDataset

FOLDER = Path("demo-data")
NUM_SAMPLES = 40_000
DIE_AT = 150


def write(folder: Path) -> None:
    columns = {"id": "int64", "text": "str", "tokens": "ndarray:int32:64"}
    with MDSWriter(out=folder, columns=columns, compression="zstd", hashes="sha1", size_limit="512kb") as writer:
        for number in range(NUM_SAMPLES):
            tokens = np.arange(number, number + 64, dtype=np.int32)
            writer.write({"id": number, "text": f"Sample {number} of the demo. " * (1 + number % 8), "tokens": tokens})


def train(url: str, *more: str) -> int:
    command = [sys.executable, str(Path(__file__).with_name("demo_training.py")), url, str(FOLDER), *more]
    return subprocess.run(command, check=False, timeout=300).returncode


def global_batches(folder: Path, num_ranks: int) -> list[list[int]]:
    """What all ranks of a world get at each step: here one after the other, in a real run side by side."""
    by_rank: list[list[Any]] = []
    for rank in range(num_ranks):
        dataset = StreamingDataset(
            local=folder,
            shuffle=True,
            shuffle_block_size=8_000,
            batch_size=BATCH_SIZE // num_ranks,
            columns=["id"],
            columnar=True,
            rank=rank,
            world_size=num_ranks,
        )
        by_rank.append([batch["id"].tolist() for batch in dataset])
    # Positions are dealt to the ranks in turn, so taking one of each in turn gives the global order back.
    return [np.stack(step, axis=1).reshape(-1).tolist() for step in zip(*by_rank, strict=True)]


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.environ["PENSTOCK_CACHE_DIR"] = str(FOLDER / "unpacked")  # else the user's own cache
    remote = FOLDER / "store"
    print(f"Writing {NUM_SAMPLES:,} samples to {remote}/, compressed and hashed ...")
    write(remote)
    store = DemoStore(remote)
    print(f"Streaming them from {store.url}: shuffled, at most 8 MB on this disk ...")
    code = train(store.url, str(DIE_AT))
    seen_before = len(json.loads((FOLDER / "checkpoint.json").read_text())["seen"])
    print(f"  killed at step {DIE_AT} (exit code {code}); its last checkpoint holds {seen_before:,} samples")
    print("Starting it again ...")
    code = train(store.url)
    if code:
        raise SystemExit(f"the second run failed with {code}")
    report = json.loads((FOLDER / "report.json").read_text())
    seen = json.loads((FOLDER / "checkpoint.json").read_text())["seen"]
    orders = {num_ranks: global_batches(remote, num_ranks) for num_ranks in (1, 2, 4)}
    uncut = [number for batch in orders[1] for number in batch]
    rows = [
        ("every sample exactly once", "yes" if sorted(seen) == list(range(NUM_SAMPLES)) else "NO"),
        ("killed and resumed = never killed", "yes" if seen == uncut else "NO"),
        ("same global batches on 1, 2 and 4 ranks", "yes" if orders[1] == orders[2] == orders[4] else "NO"),
        ("samples/s of the resumed run", f"{report['samples_per_s']:,.0f}"),
        ("bytes fetched, both runs", f"{store.num_bytes_sent:,}"),
        ("shards evicted, resumed run", f"{report['evictions']}"),
    ]
    store.close()
    print()
    for name, value in rows:
        print(f"  {name:<42} {value:>12}")
    if any(value == "NO" for _, value in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
