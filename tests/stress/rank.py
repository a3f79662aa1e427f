"""One rank of a real job: reads its share and writes down each batch, and at the end the state.

It may do so with several numbers of workers, one after the other: starting a job takes longest.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from penstock import StreamingDataLoader, StreamingDataset


def main() -> None:
    settings = json.loads(sys.argv[1])
    if settings["group"]:
        dist.init_process_group("gloo")
    reports = {str(workers): run(settings, workers) for workers in settings["workers"]}
    assert dist.is_initialized() == settings["group"]
    (Path(settings["out"]) / f"{os.environ['RANK']}.json").write_text(json.dumps(reports))
    if settings["group"]:
        dist.barrier()
        dist.destroy_process_group()


def run(settings: dict[str, Any], workers: int) -> dict[str, Any]:
    """Go through an epoch, or a part of it, with so many workers."""
    with StreamingDataset(**settings["dataset"]) as dataset:
        batch_size = settings["global_batch"] // int(os.environ["WORLD_SIZE"])
        loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=workers)
        if settings["state"] is not None:
            loader.load_state_dict(settings["state"])
        batches = []
        for batch in loader:
            batches.append([int(number) for number in batch["id"]])
            if len(batches) == settings["stop"]:
                break
        return {"batches": batches, "state": loader.state_dict(), "len": len(loader)}


if __name__ == "__main__":
    main()
