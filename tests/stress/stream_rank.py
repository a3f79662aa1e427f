"""One rank of a real job over text: files, a filter, tokens, a mix, packed rows and a shuffle buffer."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from penstock import Pipeline
from penstock.loaders import lane_places
from penstock.pipeline import BaseStage

EOS = 1


class KeepSome(BaseStage):
    """Leaves out every third line."""

    name = "keep_some"

    def process(self, data: Any, context: Any) -> Any:
        return {name: source.filter(lambda row: row["number"] % 3) for name, source in data.items()}


def make_loader(folder: str, settings: dict[str, Any]) -> Any:
    """Make the pipeline."""
    files = [{"name": name, "data_files": f"{folder}/{name}*.jsonl"} for name in ("a", "b")]
    config = {"datasets": files, "default_tokenizer": f"{folder}/tokenizer.json", "seed": 3}
    pipeline = Pipeline.from_config(config).source().add(KeepSome()).tokenize({"batch_size": 8})
    pipeline.mix({"weights": {"a": 2, "b": 1}, "stop_strategy": "all_exhausted"})
    pipeline.pack({"enabled": True, "seq_length": 16, "shuffle_buffer_factor": 1, "eos_token_id": EOS})
    load = {"shuffle_buffer_size": 12, "drop_last": False, "uneven": settings["uneven"]}
    return pipeline.load({"batch_size": settings["batch_size"], **load}).build()


def main() -> None:
    settings, rank = json.loads(sys.argv[1]), int(os.environ["RANK"])
    lane_places._NOTE_EVERY_S = settings["note_every_s"]
    dist.init_process_group("gloo")
    loader = make_loader(settings["folder"], settings)
    if settings["state"] is not None:
        loader.load_state_dict(settings["state"])
    out = Path(settings["out"]) / f"{rank}.json"
    batches: list[list[int]] = []
    states: list[Any] = []
    for batch in loader:
        batches.append([int(token) for row in batch["input_ids"] for token in row if token > EOS])
        if settings["stop"] is not None:
            states.append(loader.state_dict())
            report = {"batches": batches, "states": states, "state": states[-1]}
            out.with_suffix(".new").write_text(json.dumps(report))
            out.with_suffix(".new").rename(out)
            dist.barrier()
            if len(batches) == settings["stop"]:
                break
            if len(batches) == settings["killed_at"] and rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    else:
        out.write_text(json.dumps({"batches": batches, "state": loader.state_dict()}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
