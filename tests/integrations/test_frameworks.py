"""What Accelerate keeps of a loader, and what it must not make of one: with real ranks."""

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
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONPATH": f"{ROOT}:{ROOT}/src"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


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


@pytest.mark.parametrize(
    ("ranks", "workers", "how"),
    [
        (1, 0, ""),
        (2, 2, ""),
        (2, 0, "stateful"),
        (1, 2, "registers"),
        (2, 0, "async registers"),
        (1, 0, "stock stateful"),
        (1, 2, "stock stateful"),
    ],
)
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


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stock_loader_of_which_accelerate_keeps_nothing_is_refused(tmp_path: Path, workers: int) -> None:
    done = launch(1, "tests/integrations/checkpoint.py", write_samples(tmp_path, 100), workers, tmp_path, "stock")
    assert "StreamingDataLoader(dataset, batch_size=…)" in done.stdout, done.stdout + done.stderr[-3000:]
    assert "use_stateful_dataloader=True" in done.stdout
    assert (tmp_path / "between").exists()
