"""Records states of a release, and how it goes on from them: `PYTHONPATH=RELEASE/src:. python` and this file.

What is in `tests/golden/states` was recorded with 0.1.0.dev0, before epochs without shuffling were mixed alike, before
MosaicML's epochs of whole batches were resumed past their last sample, and before the shuffle buffer mixed like a
reservoir. `past_end.json` is what mosaicml-streaming 0.13.0 does there: with `--mosaic`, by the interpreter of
`.peers/mosaic` in `PENSTOCK_PEER_MOSAIC`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import AsyncDataLoader, MemoryShardedSource
from penstock.order.cursor import Cursor
from penstock.order.make_plan import RunSettings, check_state, make_plan
from penstock.order.options import StreamShards
from penstock.order.world import World

if TYPE_CHECKING:
    from penstock.order.plan import Plan

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "states"
WORLD, BATCH = World(num_nodes=1, ranks_per_node=4), 16
SHARDS = {"a": [30] * 10, "b": [13] * 7, "c": [4] * 3}
UNSHUFFLED: dict[str, Any] = {"shuffle": False, "batching_method": "stratified", "num_canonical_nodes": 8}
MOSAIC: dict[str, Any] = {"order": "mosaic", "shuffle": True, "num_canonical_nodes": 8, "shuffle_block_size": 60}
METHODS = ("stratified", "per_stream", "device_per_stream")
# Shards of some streams, of which some epochs are longer than their samples.
PADDED = ([[20, 13], [33], [33], [30, 3]], [[9, 13], [33, 13, 13], [18, 15]], [[27, 38, 6], [12, 28], [20, 29, 11]])


def plan_run(
    settings: dict[str, Any], shards: dict[str, list[int]], state: dict[str, Any] | None = None
) -> tuple[Plan, Cursor]:
    streams = [StreamShards(name=name, lengths=np.array(lengths)) for name, lengths in shards.items()]
    run = RunSettings(**settings)
    state = None if state is None else check_state(run, state)  # as a dataset does, which keeps what it returns
    return make_plan(streams, run, world=WORLD, global_batch_size=BATCH, state=state)


def rest_of(plan: Plan, at: Cursor) -> list[int]:
    batches = [plan.global_batch(at, step, WORLD, BATCH) for step in range(60)]
    ids: list[int] = np.concatenate(batches).tolist()
    return ids


def buffered() -> AsyncDataLoader:
    source = MemoryShardedSource([{"x": x} for x in range(400)], num_shards=4)
    return AsyncDataLoader(source, 10, shuffle_buffer_size=50, seed=3)


def past_end_cases() -> list[dict[str, Any]]:
    """Return states around the end of epochs, as `peer_orders.py` takes them."""
    cases = []
    for method in METHODS:
        for shards in PADDED:
            args = {name: value for name, value in MOSAIC.items() if name != "order"}
            num_batches = sum(map(sum, shards)) // BATCH
            for batch in range(num_batches - 1, num_batches + 4):
                state = {
                    "epoch": 1,
                    "sample_in_epoch": batch * BATCH,
                    "shuffle_seed": 9176,
                    "initial_physical_nodes": 1,
                }
                cases.append(
                    {
                        "streams": [{"shards": each} for each in shards],
                        "world": {"num_nodes": 1, "ranks_per_node": 4, "workers_per_rank": 1},
                        "args": {**args, "batching_method": method, "batch_size": BATCH // 4},
                        "epoch": 0,
                        "resume": {**state, "num_canonical_nodes": 8},
                    }
                )
    return cases


def record_mosaic() -> None:
    cases = past_end_cases()
    command = [os.environ["PENSTOCK_PEER_MOSAIC"], str(Path(__file__).parent / "mosaic" / "peer_orders.py")]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=True)
    answers = json.loads(done.stdout)
    (FOLDER / "past_end.json").write_text(json.dumps([{**c, **a} for c, a in zip(cases, answers, strict=True)]))


def record() -> None:
    plan, _ = plan_run(UNSHUFFLED, SHARDS)
    at = Cursor(2, 4 * BATCH)
    unshuffled = {"state": plan.state_dict(at), "rest": rest_of(plan, at)}
    padded = {f"{number}": lengths for number, lengths in enumerate(PADDED[1])}
    plan, _ = plan_run({**MOSAIC, "batching_method": "device_per_stream"}, padded)
    mosaic = {"state": plan.state_dict(Cursor(1, 8 * BATCH))}
    loader = buffered()
    batches = iter(loader)
    for _ in range(15):
        next(batches)
    buffer = {"state": loader.state_dict(), "rest": [batch["x"].tolist() for batch in batches]}
    for name, recorded in (("unshuffled", unshuffled), ("mosaic", mosaic), ("buffer", buffer)):
        (FOLDER / f"{name}.json").write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    record_mosaic() if "--mosaic" in sys.argv else record()
