"""The examples, run for real: whatever the framework and the number of ranks, an epoch is each sample once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.streaming import write_samples

pytestmark = pytest.mark.integrations

ROOT = Path(__file__).resolve().parents[2]


def launch(ranks: int, *command: object) -> subprocess.CompletedProcess[str]:
    run = [sys.executable]
    if ranks > 1:
        run += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [*run, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize("name", ["torch", "accelerate", "lightning", "hf_trainer"])
@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 2), (2, 0), (2, 2)])
def test_examples(tmp_path: Path, name: str, ranks: int, workers: int) -> None:
    data, seen = tmp_path / "data", tmp_path / "seen"
    launched = launch(
        1,
        "-c",
        "import sys, pathlib; sys.path.insert(0, 'examples'); import tiny; "
        f"tiny.write_line(pathlib.Path({str(data)!r}))",
    )
    assert launched.returncode == 0, launched.stderr
    done = launch(ranks, f"examples/train_{name}.py", data, "--workers", workers, "--seen", seen)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    epochs = []
    for epoch in range(2):
        by_rank = [json.loads((seen / f"epoch{epoch}.rank{rank}.json").read_text()) for rank in range(ranks)]
        assert {len(ids) for ids in by_rank} == {250 // ranks}
        assert sorted(number for ids in by_rank for number in ids) == list(range(250))
        epochs.append(by_rank)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dispatch", ["default", "shard"])
def test_a_stock_loader_that_accelerate_would_divide_again_is_refused(
    tmp_path: Path, workers: int, dispatch: str
) -> None:
    data = write_samples(tmp_path, 100)
    done = launch(2, "tests/integrations/reshard.py", data, workers, dispatch)
    assert done.returncode != 0
    assert "use penstock's StreamingDataLoader" in done.stdout + done.stderr, done.stdout + done.stderr[-3000:]
    assert "not refused" not in done.stdout


@pytest.mark.parametrize(("ranks", "workers", "how"), [(1, 0, ""), (2, 2, ""), (1, 2, "registers")])
def test_accelerate_saves_and_loads_the_state_of_a_loader(tmp_path: Path, ranks: int, workers: int, how: str) -> None:
    data = write_samples(tmp_path, 400)
    done = launch(ranks, "tests/integrations/checkpoint.py", data, workers, tmp_path, how)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    seen = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    assert sorted(number for each in seen for number in each["before"] + each["resumed"]) == list(range(400))
    for each in seen:
        assert len(each["before"]) == 40
        assert each["resumed"] == each["after"]
        assert each["next"] == each["epoch"]


def test_the_trainer_goes_on_with_packed_text(tmp_path: Path) -> None:
    def train(steps: int, seen: str, *more: object) -> None:
        done = launch(
            1, "examples/text_hf_trainer.py", tmp_path / "data", "--steps", steps, "--seen", tmp_path / seen, *more
        )
        assert done.returncode == 0, done.stdout + done.stderr[-5000:]
        assert "loss" in done.stdout

    train(30, "whole")
    for steps in (13, 17):
        train(steps, "cut", "--checkpoint", tmp_path / "checkpoints")
    whole = (tmp_path / "whole").read_text()
    assert (tmp_path / "cut").read_text() == whole
    assert len(whole.splitlines()) == 30
