"""One rank of a job: opens files, maybe waits, reads, and says what it was given or why not."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

from penstock import StreamingDataLoader, StreamingDataset
from penstock.errors import PenstockError
from tests.in_place.kinds import KINDS


def main() -> None:
    settings = json.loads(sys.argv[1])
    kind = KINDS[settings["kind"]]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    place = settings["places"][rank % len(settings["places"])]
    out = Path(settings["out"]) / f"rank-{rank}.json"
    try:
        with StreamingDataset(remote=place, shuffle=True, batch_size=10) as dataset:
            time.sleep(settings.get("pause_s", 0) * rank)
            loader = StreamingDataLoader(dataset, batch_size=10, num_workers=settings["workers"])
            batches = [kind.batch_numbers(batch) for batch in loader]
        out.write_text(json.dumps({"batches": batches, "world": os.environ["WORLD_SIZE"]}))
    except PenstockError as error:
        out.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
