"""Robot episodes in training jobs: launched by Accelerate, resumed, and in torchdata's StatefulDataLoader."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from penstock import StreamingLeRobotDataset
from tests.episodes.golden import NUM_FRAMES, ROOT
from tests.integrations.test_frameworks import launch

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls what torch no longer wants
]

PROJECT = Path(__file__).resolve().parents[2]
EXAMPLE = "examples/robots/train_multinode.py"


def accelerate_launch(num_processes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    # With --cpu it would start one process unless there is MPI. This starts as many as it is told, by torchrun, and the
    # variable below keeps them from looking for GPUs.
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(num_processes)]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    return subprocess.run(
        [*command, EXAMPLE, *map(str, arguments)],
        cwd=PROJECT,
        env={**os.environ, "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def reports(folder: Path, ranks: int) -> list[list[int]]:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]
    # One process that reads everything would pass for two: it must be two.
    assert [report["world"] for report in found] == [ranks] * ranks
    return [report["seen"] for report in found]


def test_two_processes_of_accelerate_share_all_frames(tmp_path: Path) -> None:
    arguments = ["--root", ROOT, "--dummy", "--batch-size", 8, "--num-workers", 2, "--n-action-steps", 2]
    done = accelerate_launch(2, *arguments, "--seen", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    one, other = reports(tmp_path, 2)
    assert len(one) == len(other) == -(-NUM_FRAMES // 2)
    assert set(one) | set(other) == set(range(NUM_FRAMES))
    assert len(set(one) & set(other)) == 0  # the frame that is repeated at the end is repeated on its own rank
    assert f"samples/s on rank 0 of {platform.node()}, " in done.stdout


def test_training_goes_on_on_another_number_of_ranks(tmp_path: Path) -> None:
    arguments = ["--root", ROOT, "--output-dir", tmp_path / "out", "--n-action-steps", 4, "--num-workers", 0]
    first = launch(2, EXAMPLE, *arguments, "--steps", 5, "--batch-size", 8, "--seen", tmp_path / "first")
    assert first.returncode == 0, first.stdout + first.stderr[-5000:]
    second = launch(1, EXAMPLE, *arguments, "--steps", 10, "--batch-size", 16, "--seen", tmp_path / "second")
    assert second.returncode == 0, second.stdout + second.stderr[-5000:]
    assert "going on from step 5" in second.stdout
    seen = [*reports(tmp_path / "first", 2), *reports(tmp_path / "second", 1)]
    assert list(map(len, seen)) == [40, 40, 80]
    assert len({number for each in seen for number in each}) == 160  # none twice


SCONTROL = """#!/bin/bash
for ((node = 0; node < SLURM_NNODES; node++)); do echo 127.0.0.1; done
"""
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
for ((node = 0; node < SLURM_NNODES; node++)); do
  SLURM_NODEID=$node SLURM_PROCID=$node SLURM_STEP_NUM_TASKS=$SLURM_NNODES SLURM_STEP_NUM_NODES=$SLURM_NNODES "$@" &
  tasks[node]=$!
done
for task in "${tasks[@]}"; do wait "$task" || exit 1; done
"""


def submit(folder: Path, script: str, *arguments: object, nodes: int, **variables: object) -> str:
    """Run a script of SLURM with stand-ins for its commands, which start all tasks on this machine."""
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "node[0-1]", "SLURM_JOB_ID": 4711, "SLURM_NNODES": nodes, "WORKERS": 1, **variables}
    done = subprocess.run(
        ["bash", f"examples/robots/{script}", *map(str, arguments)],
        cwd=PROJECT,
        env={
            **os.environ,
            **{name: str(value) for name, value in job.items()},
            "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    return done.stdout


def test_nodes_of_slurm_train_as_one_job_and_go_on_as_another(tmp_path: Path) -> None:
    arguments = ["--root", ROOT, "--output-dir", tmp_path / "out", "--n-action-steps", 4, "--batch-size", 8]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"MAIN_PORT": port, "ACCELERATE_MIXED_PRECISION": "no"}
    arguments += ["--steps", 5, "--seen", tmp_path / "first"]
    submit(tmp_path, "slurm_train.sh", *arguments, nodes=2, GPUS_PER_NODE=1, **settings)
    arguments += ["--steps", 10, "--seen", tmp_path / "second"]
    printed = submit(tmp_path, "slurm_train.sh", *arguments, nodes=1, GPUS_PER_NODE=2, **settings)
    assert "going on from step 5" in printed
    seen = [*reports(tmp_path / "first", 2), *reports(tmp_path / "second", 2)]
    assert list(map(len, seen)) == [40] * 4
    assert len({number for each in seen for number in each}) == 160  # none twice


def test_nodes_of_slurm_measure_after_each_has_read_all(tmp_path: Path) -> None:
    arguments = ["warmed_bucket", "sarm", "--root", ROOT, "--batches", 2, "--warmup-batches", 0, "--batch-size", 8]
    submit(tmp_path, "slurm_benchmark.sh", *arguments, nodes=2, OUT=tmp_path / "out")
    for node in range(2):
        name = f"warmed_bucket-sarm-2-nodes-{node}"
        result = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert result["frames_per_s_node"] == pytest.approx(16 * result["samples_per_s"])  # two cameras
        assert len((tmp_path / "out" / f"{name}.csv").read_text().splitlines()) == 2


def open_loader(workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = StreamingLeRobotDataset(root=ROOT, episode_pool_size=4, batch_size=8, return_uint8=True)
    return StatefulDataLoader(dataset, batch_size=8, num_workers=workers)


def numbers(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch["index"]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [1, 7, 20])
def test_a_stateful_loader_goes_on_exactly(workers: int, taken: int) -> None:
    loader = open_loader(workers)
    epochs = [numbers(loader) for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(NUM_FRAMES))
    loader = open_loader(workers)
    begun = numbers(islice(loader, taken))
    other = open_loader(workers)
    other.load_state_dict(loader.state_dict())
    assert begun == epochs[0][: 8 * taken]
    assert numbers(other) == epochs[0][8 * taken :]
    assert numbers(other) == epochs[1]
