"""Accelerate's `save_state` in the middle of an epoch, and `load_state` into a new loader: what each gives."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

from penstock import AsyncDataLoader, StreamingDataLoader, StreamingDataset
from penstock.errors import ConfigError


def open_loader(how: list[str]) -> tuple[Accelerator, Any]:
    settings = DataLoaderConfiguration(use_stateful_dataloader="stateful" in how)
    accelerator = Accelerator(dataloader_config=settings)
    dataset = StreamingDataset(local=sys.argv[1], shuffle=True, batch_size=8)
    workers = int(sys.argv[2])
    loader: Any
    if "async" in how:
        loader = AsyncDataLoader(dataset, batch_size=8, drop_last=False)
    else:
        loader = (DataLoader if "stock" in how else StreamingDataLoader)(dataset, batch_size=8, num_workers=workers)
    loader, _ = accelerator.prepare(loader, torch.nn.Linear(1, 1))
    if "registers" in how:
        accelerator.register_for_checkpointing(loader)
    return accelerator, loader


def ids(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch["id"]]


def main() -> None:
    folder, how = Path(sys.argv[3]), sys.argv[4].split()
    accelerator, loader = open_loader(how)
    ids(loader)  # the first epoch
    if "stock" in how and "stateful" not in how:
        accelerator.save_state(str(folder / "between"))  # there is nothing to lose
    batches = iter(loader)
    before = ids(islice(batches, 5))
    try:
        accelerator.save_state(str(folder / "checkpoint"))
    except ConfigError as error:
        print(f"refused: {error}")
        return
    after = ids(batches)
    accelerator.free_memory()
    accelerator, resumed = open_loader(how)
    accelerator.load_state(str(folder / "checkpoint"))
    seen = {"before": before, "after": after, "resumed": ids(resumed), "next": ids(resumed), "epoch": ids(loader)}
    (folder / f"rank{accelerator.process_index}.json").write_text(json.dumps(seen))
    accelerator.end_training()


if __name__ == "__main__":
    main()
