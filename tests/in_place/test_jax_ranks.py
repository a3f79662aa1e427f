"""Ranks of a JAX job compare what they opened through the key-value store of jax.distributed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from typing import TYPE_CHECKING, Any

from tests.in_place.kinds import KINDS
from tests.jobs import ROOT
from tests.servers.process import free_port

if TYPE_CHECKING:
    from pathlib import Path

RANK = """
import json, sys
import jax
from penstock import StreamingDataset
from penstock.errors import PenstockError
from tests.in_place.kinds import KINDS

rank, port, says_rank, *places = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(rank))
try:
    seat = {"rank": jax.process_index(), "world_size": jax.process_count()} if says_rank == "yes" else {}
    with StreamingDataset(remote=places[int(rank)], shuffle=True, batch_size=10, **seat) as dataset:
        found = {"numbers": list(KINDS["jsonl"].numbers(dataset))}
    found["has_devices"] = bool(jax._src.xla_bridge._backends)
    print(json.dumps(found))
except PenstockError as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
jax.distributed.shutdown()
"""


def run_ranks(*places: Path, says_rank: str = "yes") -> list[dict[str, Any]]:
    """Run two processes of JAX on this machine, and give what each has to say."""
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    port = str(free_port())
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), port, says_rank, *map(str, places)],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    return [json.loads(stdout.splitlines()[-1]) for stdout, _ in outputs]


def test_processes_that_see_the_same_files_share_them(tmp_path: Path) -> None:
    folder = KINDS["jsonl"].write_files(tmp_path / "data")
    ranks = run_ranks(folder, folder)
    assert sorted(chain.from_iterable(rank["numbers"] for rank in ranks)) == list(range(200))


def test_the_process_finds_out_which_it_is(tmp_path: Path) -> None:
    folder = KINDS["jsonl"].write_files(tmp_path / "data")
    ranks = run_ranks(folder, folder, says_rank="no")
    assert sorted(chain.from_iterable(rank["numbers"] for rank in ranks)) == list(range(200))
    assert [len(rank["numbers"]) for rank in ranks] == [100, 100]
    assert not any(rank["has_devices"] for rank in ranks)  # to ask for the rank must not take them


def test_processes_that_see_other_files_are_told_both_of_them(tmp_path: Path) -> None:
    kind = KINDS["jsonl"]
    one, other = kind.write_files(tmp_path / "one" / "data"), kind.write_files(tmp_path / "other" / "data", 5)
    ranks = run_ranks(one, other)
    assert [rank["error"].partition(" in ")[0] for rank in ranks] == [
        "ObjectChangedError: the ranks of this job found different data"
    ] * 2
