"""lerobot itself reads a dataset that penstock wrote: rows, windows, pictures, tasks and statistics."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.episodes.golden import expected
from tests.episodes.recording import IMAGE, LENGTHS, TASKS, TOP, write, write_types
from tests.episodes.test_golden import check
from tests.episodes.test_meta import numbers_in

from penstock import StreamingLeRobotDataset

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]


def ask_lerobot(tmp_path: Path, program: str) -> dict[str, Any]:
    python = Path(os.environ.get("PENSTOCK_PEER_LEROBOT", ROOT / ".peers/lerobot/bin/python"))
    assert python.exists(), "run make interop, which makes the environment of lerobot"
    report = tmp_path / "report.json"
    command = [str(python), str(ROOT / "tests/interop" / program), str(tmp_path / "set"), str(report)]
    environ = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    reported: dict[str, Any] = json.loads(report.read_text())
    return reported


def test_numbers_of_every_type_are_those_of_lerobot(tmp_path: Path) -> None:
    write_types(tmp_path / "set")
    theirs = ask_lerobot(tmp_path, "lerobot_types.py")
    assert theirs == expected(ROOT / "tests/golden/lerobot/types")
    for window in theirs["windows"].values():
        with StreamingLeRobotDataset(root=tmp_path / "set", delta_timestamps=window["delta_timestamps"]) as dataset:
            for query in window["queries"]:
                sample = dataset[query["index"]]
                assert list(sample) == window["keys"]
                for key, answer in query["item"].items():
                    check(sample[key], answer)


@pytest.mark.parametrize("codec", ["h264", "av1"])
def test_lerobot_reads_what_penstock_writes(tmp_path: Path, codec: str) -> None:
    write(tmp_path / "set", video_codec=codec)
    theirs = ask_lerobot(tmp_path, "lerobot_peer.py")
    assert (theirs["episodes"], theirs["frames"]) == (len(LENGTHS), sum(LENGTHS))
    deltas = {TOP: [-0.1, 0.0, 0.1], "action": [0.0, 0.1]}
    with StreamingLeRobotDataset(root=tmp_path / "set", delta_timestamps=deltas) as dataset:
        assert dataset.meta.stats is not None
        assert theirs["stats"]["action"] == dataset.meta.stats["action"]
        for number, sample in enumerate(theirs["samples"]):
            ours = dataset[number]
            assert sample["keys"] == list(ours)
            for key in ("action", "matrix", "reward", "done", "action_is_pad", "index", "task_index", "timestamp"):
                assert sample[key] == ours[key].tolist()
            assert sample["codes"] == numbers_in(ours[TOP])
            assert sample["gray"] == round(float(ours[IMAGE].mean()) * 255)
            assert (sample["task"], sample["note"]) == (ours["task"], ours["note"])
            assert sample["task"] == TASKS[int(ours["episode_index"]) % 2]
