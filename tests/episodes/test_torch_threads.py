"""No pool of torch's threads is started where samples and batches are made: its threads spin while they wait."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock.data.torch_loaders import collate_alone
from tests.episodes.build import Layout, write_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

_COUNT_THREADS = """
import json, os, sys
import torch
from penstock import LeRobotStream, StreamingDataLoader, StreamingLeRobotMix
from tests.episodes.build import CAMERA

torch.set_num_threads(3)
streams = [LeRobotStream(root=root) for root in sys.argv[1:]]
windows = {CAMERA: [-0.3, -0.2, -0.1, 0.0]}  # of more numbers than torch has one thread make
with StreamingLeRobotMix(streams, delta_timestamps=windows, video_decode_threads=0) as mix:
    before = len(os.listdir("/proc/self/task"))
    for batch in StreamingDataLoader(mix, batch_size=8):
        assert batch[CAMERA].shape[1:] == (4, 3, 64, 64)
    after = len(os.listdir("/proc/self/task"))
    torch.ones(1 << 20).div_(3)
    print(json.dumps([after - before, len(os.listdir("/proc/self/task")) - after]))
"""


def test_a_loop_over_robots_starts_no_pool_of_torch(tmp_path: Path) -> None:
    lengths: dict[str, Any] = {"data_files": [[9, 6]], "video_files": [[9, 6]]}
    write_dataset(tmp_path / "eyes", Layout(**lengths))
    write_dataset(tmp_path / "blind", Layout(**lengths, has_video=False))
    command = [sys.executable, "-c", _COUNT_THREADS, str(tmp_path / "eyes"), str(tmp_path / "blind")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    started, by_torch = json.loads(done.stdout)
    assert by_torch == 2  # what torch starts once it is asked for something large
    assert started <= 1  # of penstock: the line to the fetcher


@pytest.mark.parametrize("kind", [torch.float32, torch.uint16, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("size", [3, 40_000])
def test_batches_are_those_of_torch(kind: torch.dtype, size: int) -> None:
    def sample(number: int) -> dict[str, object]:
        values = torch.full((2, size), number).to(kind)
        return {"values": values, "nested": [values[0], {"last": values.t()}], "text": str(number), "index": number}

    ours = collate_alone([sample(number) for number in range(3)])
    theirs = torch.utils.data.default_collate([sample(number) for number in range(3)])
    assert list(ours) == list(theirs)
    assert (ours["text"], ours["index"].tolist()) == (theirs["text"], theirs["index"].tolist())
    pairs: list[tuple[Tensor, Tensor]] = [(ours["values"], theirs["values"])]
    pairs += [(ours["nested"][0], theirs["nested"][0]), (ours["nested"][1]["last"], theirs["nested"][1]["last"])]
    for one, other in pairs:
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_samples_that_make_no_batch_are_refused_as_torch_refuses_them() -> None:
    with pytest.raises(RuntimeError, match="equal size"):
        collate_alone([torch.zeros(40_000), torch.zeros(40_001)])
    tensors = [torch.zeros(40_000, requires_grad=True), torch.zeros(40_000)]
    assert collate_alone(tensors).requires_grad
    assert np.array_equal(collate_alone([np.arange(40_000)] * 2)[1], np.arange(40_000))
