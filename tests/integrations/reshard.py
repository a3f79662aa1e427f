"""What must not go unnoticed: Accelerate prepares a stock loader, and divides samples that are divided already."""

from __future__ import annotations

import sys
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

from penstock import StreamingDataset
from penstock.errors import ConfigError


def main() -> None:
    workers, dispatch = int(sys.argv[2]), {"default": None, "shard": False}[sys.argv[3]]
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    dataset = StreamingDataset(local=sys.argv[1], batch_size=5)
    loader: Any = accelerator.prepare(DataLoader(dataset, batch_size=5, num_workers=workers))
    try:
        seen = sum(len(batch["id"]) for batch in loader)
    except ConfigError as error:
        print(f"refused: {error}", flush=True)
        sys.exit(7)
    print(f"not refused: {seen} samples", flush=True)


if __name__ == "__main__":
    main()
