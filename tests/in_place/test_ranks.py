"""Real ranks, started by torchrun: they share the data, and notice if they do not see the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from tests.in_place.kinds import KINDS, Kind
from tests.jobs import ROOT
from tests.streaming import write_samples

if TYPE_CHECKING:
    from pathlib import Path


def run_ranks(out: Path, **settings: Any) -> list[dict[str, Any]]:
    """Run two ranks, and give what each has to say."""
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--log-dir={out}"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    given = json.dumps({"out": str(out), **settings})
    ended = subprocess.run(
        [*command, "-m", "tests.in_place.rank", given],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    "name", ["parquet", *(pytest.param(name, marks=pytest.mark.soak) for name in KINDS if name != "parquet")]
)
def test_two_ranks_of_two_workers(tmp_path: Path, name: str) -> None:
    kind: Kind = KINDS[name]
    folder = kind.write_files(tmp_path / "data")
    ranks = run_ranks(tmp_path / "out", kind=name, places=[str(folder)], workers=2)
    numbers = [list(chain.from_iterable(rank["batches"])) for rank in ranks]
    assert sorted(numbers[0] + numbers[1]) == list(range(200))


def test_ranks_that_see_other_files_are_told_all_of_them(tmp_path: Path) -> None:
    kind = KINDS["jsonl"]
    one, other = kind.write_files(tmp_path / "one" / "data"), kind.write_files(tmp_path / "other" / "data", 5)
    ranks = run_ranks(tmp_path / "out", kind="jsonl", places=[str(one), str(other)], workers=0)
    assert [rank["error"].partition(" in ")[0] for rank in ranks] == [
        "ObjectChangedError: the ranks of this job found different data"
    ] * 2


def test_so_are_those_of_a_dataset_with_an_index(tmp_path: Path) -> None:
    one, other = write_samples(tmp_path / "one" / "data", 40), write_samples(tmp_path / "other" / "data", 50)
    ranks = run_ranks(tmp_path / "out", kind="jsonl", places=[str(one), str(other)], workers=0)
    assert all("the ranks of this job found different data" in rank["error"] for rank in ranks)
