"""A writer that is killed leaves no dataset that looks whole, and its successor needs no cleaning by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from penstock import LocalDataset, MDSWriter
from penstock.errors import ObjectNotFoundError, OutputExistsError

if TYPE_CHECKING:
    from pathlib import Path

WRITE_FOR_EVER = """
import itertools, sys
from penstock import MDSWriter
writer = MDSWriter(out=sys.argv[1], columns={"x": "int", "s": "str"}, compression="zstd", size_limit=20_000)
for x in itertools.count():
    writer.write({"x": x, "s": "text " * 20})
"""


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("last_shard", [0, 3, 17])
def test_kill_while_writing(tmp_path: Path, last_shard: int) -> None:
    out = tmp_path / "data"
    process = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, str(out)])
    try:
        wait_for(out / f"shard.{last_shard:05}.mds.zstd", process)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with pytest.raises(ObjectNotFoundError):
        LocalDataset(out)
    with pytest.raises(OutputExistsError):
        MDSWriter(out=out, columns={"x": "int"})
    with MDSWriter(out=out, columns={"x": "int"}, exist_ok=True) as writer:
        writer.write({"x": 1})
    assert list(LocalDataset(out)) == [{"x": 1}]
    assert sorted(path.name for path in out.iterdir()) == ["index.json", "shard.00000.mds"]


def test_kill_while_appending(tmp_path: Path) -> None:
    out = tmp_path / "data"
    with MDSWriter(out=out, columns={"x": "int", "s": "str"}) as writer:
        writer.write({"x": -1, "s": "first"})
    code = WRITE_FOR_EVER.replace("size_limit=20_000", "size_limit=20_000, append=True")
    process = subprocess.Popen([sys.executable, "-c", code, str(out)])
    try:
        wait_for(out / "shard.00004.mds.zstd", process)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert list(LocalDataset(out)) == [{"x": -1, "s": "first"}]
    with MDSWriter(out=out, append=True) as writer:
        writer.write({"x": -2, "s": "second"})
    assert [sample["x"] for sample in LocalDataset(out)] == [-1, -2]
