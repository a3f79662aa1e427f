"""Real jobs under torchrun: every world sees the same global batches, and goes on from any other's state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest

from penstock import StreamingDataLoader, StreamingDataset
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
        """Return what each rank of a job says."""
        return self.run_each(ranks, [workers], state=state, stop=stop)[0]

    def run_each(
        self, ranks: int, workers: list[int], *, state: Report | None = None, stop: int | None = None
    ) -> list[list[Report]]:
        """Return the same for each number of workers, all in one job."""
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
                f"--log-dir={out}",
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


ORDER: Report = {"shuffle": True, "shuffle_block_size": 40}
PLACES = ["local", pytest.param("remote", marks=pytest.mark.soak)]


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[list[int]]:
    """The batches of one process alone, which no launcher started."""
    with warnings.catch_warnings(), StreamingDataset(local=str(folder), **ORDER) as dataset:
        warnings.filterwarnings("ignore", "samples are shuffled among 5 of 21 shards")  # which is meant to be so
        loader = StreamingDataLoader(dataset, batch_size=GLOBAL_BATCH)
        batches = [sorted(batch["id"].tolist()) for batch in loader]
    assert sorted(chain.from_iterable(batches)) == list(range(NUM_SAMPLES))
    assert len(batches) == 27
    return batches


@pytest.fixture
def jobs(folder: Path, tmp_path: Path, place: str) -> Jobs:
    if place == "local":
        return Jobs(tmp_path, {**ORDER, "local": str(folder)})
    size = sum(path.stat().st_size for path in folder.rglob("shard*"))
    cache = {"local": str(tmp_path / "cache"), "cache_limit": int(size * 0.75) + (folder / "index.json").stat().st_size}
    return Jobs(tmp_path, {**ORDER, "remote": str(folder), **cache})


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_world_sees_the_same_batches(jobs: Jobs, whole: list[list[int]], ranks: int) -> None:
    for found in map(global_batches, jobs.run_each(ranks, [0, 2])):
        assert found[:-1] == whole[:-1]
        assert set(found[-1]) >= set(whole[-1])
        assert sum(map(len, found)) - NUM_SAMPLES < ranks


@pytest.mark.parametrize("place", PLACES)
def test_a_job_goes_on_in_any_other_world(jobs: Jobs, whole: list[list[int]]) -> None:
    """Stopped somewhere, gone on in another world, stopped again, gone on in a third one."""
    begun = jobs.run(2, 2, stop=7)
    middle = jobs.run(4, 0, state=only_state(begun), stop=5)
    end = jobs.run(1, 2, state=only_state(middle))
    assert global_batches(begun) + global_batches(middle) + global_batches(end) == whole
    assert only_state(end)["position"] == NUM_SAMPLES
