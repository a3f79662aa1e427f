"""Real ranks, started by torchrun, go on from the state of a job of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from typing import TYPE_CHECKING

import pytest

from penstock import StreamingDataLoader, StreamingLeRobotDataset
from tests.episodes.golden import NUM_FRAMES, ROOT
from tests.jobs import ROOT as PROJECT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("ranks", "workers"), [(2, 2), pytest.param(3, 3, marks=pytest.mark.soak)])
def test_ranks_go_on_where_one_process_stopped(tmp_path: Path, ranks: int, workers: int) -> None:
    with StreamingLeRobotDataset(root=ROOT, episode_pool_size=4, return_uint8=True) as dataset:
        whole = [int(sample["index"]) for sample in dataset]
        loader = StreamingDataLoader(dataset, batch_size=8)
        loader.set_epoch(0)
        batches = iter(loader)
        assert next(batches)["index"].tolist() == whole[:8]
        state = loader.state_dict()
        del batches
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command.append(f"--log-dir={tmp_path}")
    given = json.dumps({"out": str(tmp_path), "workers": workers, "state": state})
    done = subprocess.run(
        [*command, "-m", "tests.episodes.rank", given],
        cwd=PROJECT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    reports = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    assert [report["world"] for report in reports] == [ranks] * ranks
    turned = (
        reports[8 % ranks :] + reports[: 8 % ranks]
    )  # position p is read by rank p % ranks, whichever read those before
    rest = list(chain.from_iterable(zip(*(report["seen"][0] for report in turned), strict=True)))
    assert rest[: NUM_FRAMES - 8] == whole[8:]
    second = list(chain.from_iterable(zip(*(report["seen"][1] for report in reports), strict=True)))
    assert set(second) == set(range(NUM_FRAMES))
    assert len(second) < NUM_FRAMES + ranks
