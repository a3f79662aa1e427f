"""One rank of a real job: reads its share and writes down each batch, and at the end the state."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from penstock import StreamingDataLoader, StreamingDataset


def main() -> None:
    settings = json.loads(sys.argv[1])
    if settings["group"]:
        dist.init_process_group("gloo")
    dataset = StreamingDataset(**settings["dataset"])
    was_initialized = dist.is_initialized()
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    loader = StreamingDataLoader(
        dataset, batch_size=settings["global_batch"] // num_ranks, num_workers=settings["workers"]
    )
    if settings["state"] is not None:
        loader.load_state_dict(settings["state"])
    batches = []
    for batch in loader:
        batches.append([int(number) for number in batch["id"]])
        if len(batches) == settings["stop"]:
            break
    report = {"batches": batches, "state": loader.state_dict(), "len": len(loader)}
    assert dist.is_initialized() == was_initialized == settings["group"]
    (Path(settings["out"]) / f"{rank}.json").write_text(json.dumps(report))
    dataset.close()
    if settings["group"]:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
