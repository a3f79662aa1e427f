"""Real jobs under torchrun: every world sees the same global batches, and goes on from any other's state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest

from tests.streaming import write_samples

ROOT = Path(__file__).resolve().parents[2]
NUM_SAMPLES, GLOBAL_BATCH = 210, 8

Report = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("data") / "all", NUM_SAMPLES)


class Jobs:
    """Starts jobs, each with a folder for what its ranks write down."""

    def __init__(self, scratch: Path, dataset: Report) -> None:
        self._scratch, self._dataset, self._numbers = scratch, dataset, count()

    def run(self, ranks: int, workers: int, *, state: Report | None = None, stop: int | None = None) -> list[Report]:
        """Give what each rank of a job says."""
        return self.run_each(ranks, [workers], state=state, stop=stop)[0]

    def run_each(
        self, ranks: int, workers: list[int], *, state: Report | None = None, stop: int | None = None
    ) -> list[list[Report]]:
        """Give the same for each number of workers, all in one job."""
        out = self._scratch / str(next(self._numbers))
        out.mkdir()
        settings = {
            "out": str(out),
            "dataset": self._dataset,
            "workers": workers,
            "global_batch": GLOBAL_BATCH,
            "state": state,
            "stop": stop,
            "group": ranks % 4 != 0,  # the environment alone serves as well
        }
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
                *(str(Path(__file__).with_name("rank.py")), json.dumps(settings)),
            ],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        said = [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]
        return [[reports[str(number)] for reports in said] for number in workers]


def global_batches(reports: list[Report]) -> list[list[int]]:
    """What all ranks saw at each step."""
    assert len({len(report["batches"]) for report in reports}) == 1
    return [sorted(chain.from_iterable(step)) for step in zip(*(report["batches"] for report in reports), strict=True)]


def only_state(reports: list[Report]) -> Report:
    """All ranks say the same of the whole job."""
    first: Report = reports[0]["state"]
    assert all(report["state"] == first for report in reports)
    return first


@pytest.mark.parametrize("place", ["local", pytest.param("remote", marks=pytest.mark.soak)])
def test_worlds(folder: Path, tmp_path: Path, place: str) -> None:
    size = sum(path.stat().st_size for path in folder.rglob("shard*"))
    dataset: Report = {"shuffle": True, "shuffle_block_size": 40}
    if place == "local":
        dataset["local"] = str(folder)
    else:
        dataset |= {"remote": str(folder), "local": str(tmp_path / "cache"), "cache_limit": int(size * 0.75)}
    jobs = Jobs(tmp_path, dataset)
    whole, *others = map(global_batches, jobs.run_each(1, [0, 2]))
    assert others == [whole]
    assert sorted(chain.from_iterable(whole)) == list(range(NUM_SAMPLES))
    assert len(whole) == 27
    for ranks in [2, 4] if place == "local" else [2]:
        for found in map(global_batches, jobs.run_each(ranks, [0, 2])):
            assert found[:-1] == whole[:-1]
            assert set(found[-1]) >= set(whole[-1])
            assert sum(map(len, found)) - NUM_SAMPLES < ranks
    # Stopped somewhere, gone on in another world, stopped again, gone on in a third one.
    begun = jobs.run(2, 2, stop=7)
    middle = jobs.run(4, 0, state=only_state(begun), stop=5)
    end = jobs.run(1, 2, state=only_state(middle))
    assert global_batches(begun) + global_batches(middle) + global_batches(end) == whole
    assert only_state(end)["position"] == NUM_SAMPLES
