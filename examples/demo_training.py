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

from penstock import StreamingDataLoader, StreamingDataset

BATCH_SIZE = 100
SAVE_EVERY = 20


def open_loader(url: str, folder: Path) -> StreamingDataLoader:
    dataset = StreamingDataset(
        remote=url,
        local=folder / "cache",
        shuffle=True,
        shuffle_block_size=8_000,
        cache_limit="8mb",
        validate_hash="sha1",
    )
    return StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=2)


def train(url: str, folder: Path, die_at: int | None) -> None:
    loader = open_loader(url, folder)
    checkpoint, seen = folder / "checkpoint.json", []
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        loader.load_state_dict(saved["loader"])
        seen = saved["seen"]
    began, num_new = time.perf_counter(), 0
    for step, batch in enumerate(loader, start=len(seen) // BATCH_SIZE + 1):
        seen += batch["id"].tolist()  # a real run would take a training step here
        num_new += len(batch["id"])
        if step % SAVE_EVERY == 0 or step == len(loader):
            checkpoint.write_text(json.dumps({"loader": loader.state_dict(), "seen": seen}))
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
    evictions = loader.stats().node.evictions
    report = {"samples_per_s": num_new / (time.perf_counter() - began), "evictions": evictions}
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
