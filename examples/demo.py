"""Writes a small dataset, shows its shards, reads it back in a shuffled order, and verifies it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np

from penstock import LocalDataset, MDSWriter
from penstock.cli.main import main as penstock

FOLDER = Path("demo-data")
NUM_SAMPLES = 50_000
BATCH_SIZE = 256


def make_sample(number: int) -> dict[str, object]:
    text = f"Sample {number} of the demo. " * (1 + number % 8)
    return {"id": number, "text": text, "tokens": np.arange(number, number + 64, dtype=np.int32)}


def write() -> None:
    columns = {"id": "int", "text": "str", "tokens": "ndarray:int32:64"}
    with MDSWriter(out=FOLDER, columns=columns, compression="zstd", hashes="sha1", size_limit="4MB") as writer:
        for number in range(NUM_SAMPLES):
            writer.write(make_sample(number))


def read_shuffled() -> int:
    dataset = LocalDataset(FOLDER)
    order = np.random.default_rng(17).permutation(len(dataset))
    seen = 0
    for begin in range(0, len(order), BATCH_SIZE):
        ids = order[begin : begin + BATCH_SIZE]
        batch = dataset.read_columns(ids)
        assert np.array_equal(batch["id"], ids)
        assert np.array_equal(np.asarray(batch["tokens"])[:, 0], ids)
        seen += len(batch["text"])
    return seen


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    print(f"Writing {NUM_SAMPLES:,} samples to {FOLDER}/ ...")
    started = time.perf_counter()
    write()
    print(f"  {NUM_SAMPLES / (time.perf_counter() - started):,.0f} samples/s, compressed and hashed\n")
    penstock(["inspect", str(FOLDER)])
    print(f"\nReading it back shuffled over all shards, in batches of {BATCH_SIZE} ...")
    started = time.perf_counter()
    seen = read_shuffled()
    print(f"  {seen:,} samples as written, {seen / (time.perf_counter() - started):,.0f} samples/s\n")
    print("Verifying every file, digest and value ...")
    raise SystemExit(penstock(["verify", str(FOLDER), "--values"]))


if __name__ == "__main__":
    main()
