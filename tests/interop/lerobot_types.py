"""Run in the environment of lerobot: reads a dataset with its map-style reader, and reports the type of every value.

.peers/lerobot/bin/python tests/interop/lerobot_types.py DATASET REPORT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lerobot.datasets.lerobot_dataset import LeRobotDataset

OFFSETS = [-0.1, 0.0, 0.2]


def main() -> None:
    windows: dict[str, Any] = {}
    known = ("timestamp", "frame_index", "episode_index", "index", "task_index")
    numbers = [key for key in LeRobotDataset("me/types", root=sys.argv[1]).features if key not in known]
    for name, deltas in (("none", None), ("all", dict.fromkeys(numbers, OFFSETS))):
        dataset = LeRobotDataset("me/types", root=sys.argv[1], delta_timestamps=deltas)
        items = [{key: answer(value) for key, value in dataset[index].items()} for index in range(len(dataset))]
        queries = [{"index": index, "item": item} for index, item in enumerate(items)]
        windows[name] = {"delta_timestamps": deltas, "keys": list(items[0]), "queries": queries}
    meta = {"total_frames": len(windows["none"]["queries"]), "source": "map-style LeRobotDataset of lerobot 0.4.4"}
    Path(sys.argv[2]).write_text(json.dumps({"meta": meta, "windows": windows}, separators=(",", ":")))


def answer(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"type": "str", "value": value}
    dtype = str(value.dtype).removeprefix("torch.")
    return {"type": "tensor", "dtype": dtype, "shape": list(value.shape), "value": value.tolist()}


if __name__ == "__main__":
    main()
