"""A training run in miniature: streams a dataset, notes what it saw, saves its state, and may be killed at any moment.

Usage: demo_training.py URL FOLDER [STEP TO DIE AT]
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from penstock import StreamingDataset

BATCH_SIZE = 100
SAVE_EVERY = 20


def train(url: str, folder: Path, die_at: int | None) -> None:
    dataset = StreamingDataset(
        remote=url,
        local=folder / "cache",
        batch_size=BATCH_SIZE,
        shuffle=True,
        shuffle_block_size=8_000,
        cache_limit="8mb",
        validate_hash="sha1",
        columnar=True,  # batches as dicts of arrays: no torch needed
    )
    checkpoint, seen = folder / "checkpoint.json", []
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        dataset.load_state_dict(saved["dataset"])
        seen = saved["seen"]
    began, num_before = time.perf_counter(), len(seen)
    for step, batch in enumerate(dataset, start=num_before // BATCH_SIZE + 1):
        seen += batch["id"].tolist()  # a real run would take a training step here
        if step % SAVE_EVERY == 0 or len(seen) == len(dataset):
            checkpoint.write_text(json.dumps({"dataset": dataset.state_dict(), "seen": seen}))
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
    samples_per_s = (len(seen) - num_before) / (time.perf_counter() - began)
    report = {"samples_per_s": samples_per_s, "evictions": dataset.stats().node.evictions}
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
