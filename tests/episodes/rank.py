"""One rank of a job on robot episodes: goes on from a state that another world left, and says what it was given."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

from penstock import StreamingDataLoader, StreamingLeRobotDataset
from tests.episodes.golden import ROOT, WRIST, codes_of


def main() -> None:
    settings = json.loads(sys.argv[1])
    dist.init_process_group("gloo")
    seen: list[list[int]] = []
    with StreamingLeRobotDataset(root=ROOT, episode_pool_size=4, return_uint8=True) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=8, num_workers=settings["workers"])
        loader.load_state_dict(settings["state"])
        for _ in range(2):
            numbers: list[int] = []
            for batch in loader:
                numbers += batch["index"].tolist()
                assert codes_of(batch[WRIST]) == [1000 + number for number in batch["index"].tolist()]
                dist.barrier()  # as a training step would: ranks that have no batch left would hang
            seen.append(numbers)
    report = {"world": dist.get_world_size(), "seen": seen}
    (Path(settings["out"]) / f"rank-{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
