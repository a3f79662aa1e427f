"""Records the native orders that must never change: `python tests/order/record_native.py FOLDER`.

Recorded once; a change of what this writes is a change of every user's order.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.order.native import StreamPlan
from penstock.order.options import OrderOptions, StreamShards
from penstock.order.schedule import MixSchedule
from penstock.order.weights import StreamWeight

if TYPE_CHECKING:
    from penstock.types import Int64Array


def plan_case(case: dict[str, Any]) -> StreamPlan:
    streams = [
        StreamShards(
            name=stream["name"],
            lengths=np.repeat(stream["lengths"], stream.get("times", 1)),
            weight=StreamWeight(**stream.get("weight", {})),
        )
        for stream in case["streams"]
    ]
    options = dict(case["options"])
    if "schedule" in options:
        options["schedule"] = MixSchedule.read(options["schedule"])
    return StreamPlan.make(streams, OrderOptions(**options))


def read_case(case: dict[str, Any]) -> Int64Array:
    plan = plan_case(case)
    return plan.order.ids(case["epoch"], range(*case["positions"]))


def digest(ids: Int64Array) -> str:
    return hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()


ONE = [{"name": "one", "lengths": [7, 0, 1, 300, 25, 25, 25, 90]}]
MANY = [{"name": "many", "lengths": [100], "times": 500}]
HUGE = [{"name": "huge", "lengths": [10**6], "times": 10**5}]
MIX = [
    {"name": "a", "lengths": [60], "times": 10, "weight": {"repeat": 1.5}},
    {"name": "b", "lengths": [11, 200, 3], "weight": {"choose": 150}},
    {"name": "rare", "lengths": [5]},
]
LARGE = [
    {"name": "large", "lengths": [100], "times": 60},
    {"name": "small", "lengths": [90], "times": 40},
    {"name": "rare", "lengths": [1, 1]},
]
PLAIN = [{"name": name, "lengths": [50], "times": 8} for name in "xyz"]
SCHEDULE = {
    "positions": [0, 400, 900],
    "proportions": [[1, 0, 0], [0.5, 0.5, 0], [0, 0.2, 0.8]],
    "shape": "cosine",
    "block": 50,
}
CASES: list[dict[str, Any]] = [
    {"streams": ONE, "options": {}, "epoch": 0, "positions": [0, 473]},
    {"streams": ONE, "options": {"seed": 1, "num_canonical_nodes": 3}, "epoch": 2, "positions": [0, 473]},
    {"streams": ONE, "options": {"shuffle_block_size": 64}, "epoch": 0, "positions": [5, 473, 8]},
    {"streams": MANY, "options": {}, "epoch": 1, "positions": [0, 50_000]},
    {"streams": HUGE, "options": {}, "epoch": 0, "positions": [73 * 10**9, 73 * 10**9 + 4096]},
    {"streams": MIX, "options": {"num_canonical_nodes": 2}, "epoch": 0, "positions": [0, 1055]},
    {"streams": MIX, "options": {"shuffle": False}, "epoch": 1, "positions": [0, 1055]},
    {
        "streams": MIX,
        "options": {"num_canonical_nodes": 4, "batching_method": "stratified", "global_batch_size": 16},
        "epoch": 0,
        "positions": [0, 1055],
    },
    {
        "streams": PLAIN,
        "options": {"num_canonical_nodes": 4, "batching_method": "per_stream", "global_batch_size": 16},
        "epoch": 0,
        "positions": [0, 1200],
    },
    {
        "streams": PLAIN,
        "options": {
            "num_canonical_nodes": 4,
            "batching_method": "device_per_stream",
            "global_batch_size": 16,
            "device_batch_size": 4,
        },
        "epoch": 3,
        "positions": [0, 1184],
    },
    {"streams": LARGE, "options": {"num_canonical_nodes": 2}, "epoch": 0, "positions": [0, 9602]},
    {
        "streams": LARGE,
        "options": {"num_canonical_nodes": 4, "batching_method": "stratified", "global_batch_size": 16},
        "epoch": 1,
        "positions": [0, 9602],
    },
    {
        "streams": PLAIN,
        "options": {"schedule": SCHEDULE, "epoch_size": 1000},
        "epoch": 0,
        "positions": [0, 1000],
    },
]


def main(folder: Path) -> None:
    recorded = []
    for case in CASES:
        ids = read_case(case)
        plan = plan_case(case)
        answer = {"first": ids[:16].tolist(), "sha256": digest(ids), "fingerprint": plan.fingerprint}
        recorded.append({**case, **answer})
    (folder / "orders.json").write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
