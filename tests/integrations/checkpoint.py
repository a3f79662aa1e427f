"""Accelerate's `save_state` in the middle of an epoch, and `load_state` into a new loader: what each gives."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from penstock import StreamingDataLoader, StreamingDataset


def open_loader(accelerator: Accelerator, *, registers: bool) -> Any:
    dataset = StreamingDataset(local=sys.argv[1], shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=int(sys.argv[2]))
    loader, _ = accelerator.prepare(loader, torch.nn.Linear(1, 1))
    if registers:
        accelerator.register_for_checkpointing(loader)
    return loader


def ids(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch["id"]]


def main() -> None:
    folder, registers = Path(sys.argv[3]), sys.argv[4] == "registers"
    accelerator = Accelerator()
    loader = open_loader(accelerator, registers=registers)
    batches = iter(loader)
    before = ids(islice(batches, 5))
    accelerator.save_state(str(folder / "checkpoint"))
    after = ids(batches)
    accelerator.free_memory()
    accelerator = Accelerator()
    resumed = open_loader(accelerator, registers=registers)
    accelerator.load_state(str(folder / "checkpoint"))
    seen = {"before": before, "after": after, "resumed": ids(resumed), "next": ids(resumed), "epoch": ids(loader)}
    (folder / f"rank{accelerator.process_index}.json").write_text(json.dumps(seen))
    accelerator.end_training()


if __name__ == "__main__":
    main()
