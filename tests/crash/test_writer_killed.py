"""A writer that is killed leaves no dataset that looks whole, and its successor needs no cleaning by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from penstock import LocalDataset, MDSWriter, merge_index
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
    assert sorted(path.name for path in out.iterdir()) == ["index.json", "shard.00000.mds", "shard.00001.mds"]


@pytest.mark.parametrize("last_shard", [0, 5])
def test_kill_while_replacing(tmp_path: Path, last_shard: int) -> None:
    out = tmp_path / "data"
    with MDSWriter(out=out, columns={"x": "int"}, size_limit=60) as writer:
        for x in range(20):
            writer.write({"x": x})
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert len(before) > 5
    code = WRITE_FOR_EVER.replace("size_limit=20_000", "size_limit=20_000, exist_ok=True")
    process = subprocess.Popen([sys.executable, "-c", code, str(out)])
    try:
        wait_for(out / f"shard.{100_000 + len(before) - 1 + last_shard:05}.mds.zstd", process)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert {name: (out / name).read_bytes() for name in before} == before
    assert [sample["x"] for sample in LocalDataset(out)] == list(range(20))
    with MDSWriter(out=out, columns={"x": "int"}, exist_ok=True) as writer:
        writer.write({"x": 1})
    assert list(LocalDataset(out)) == [{"x": 1}]
    assert sorted(path.name for path in out.iterdir()) == ["index.json", "shard.00000.mds"]


KILL_AT_EACH_STEP = """
import itertools, os, shutil, signal, sys
from penstock import LocalDataset, MDSWriter
left, out = -1, sys.argv[1]
def count(event, arguments):
    global left
    if left >= 0 and event in ("os.rename", "os.remove", "os.link") and str(arguments[0]).startswith(out):
        left -= 1
        if left < 0:
            signal.raise_signal(signal.SIGKILL)
sys.addaudithook(count)
for steps in itertools.count(1):
    shutil.rmtree(out, ignore_errors=True)
    pid = os.fork()
    if not pid:
        for sign in (1, -1):
            writer = MDSWriter(out=out, columns={"x": "int"}, size_limit=60, exist_ok=True)
            for x in range(1, 5):
                writer.write({"x": sign * x})
            writer._queue.results()
            left = steps if sign < 0 else -1
            writer.finish()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    print([sample["x"] for sample in LocalDataset(out)])
    if not status:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
"""


def test_kill_at_each_step_of_the_swap(tmp_path: Path) -> None:
    """Before each of the calls that name or remove files, the old dataset is there as a whole, or the new one."""
    out = tmp_path / "data"
    done = subprocess.run(
        [sys.executable, "-c", KILL_AT_EACH_STEP, str(out)], capture_output=True, text=True, timeout=60, check=True
    )
    found = done.stdout.splitlines()
    assert len(found) > 12
    assert found == sorted(found, key=lambda line: "-" in line)
    assert set(found) == {str(list(range(1, 5))), str([-x for x in range(1, 5)])}
    names = sorted(path.name for path in out.iterdir())
    assert names == ["index.json", *(f"shard.{number:05}.mds" for number in range(len(names) - 1))]


MERGE_AND_DIE = """
import signal, sys
from penstock import merge_index
def die(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith("index.json"):
        signal.raise_signal(signal.SIGKILL)
sys.addaudithook(die)
merge_index(sys.argv[1])
"""


def test_kill_while_merging(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path / "a", columns={"x": "int"}) as writer:
        writer.write({"x": 1})
    subprocess.run([sys.executable, "-c", MERGE_AND_DIE, str(tmp_path)], check=False)
    assert [path.name for path in tmp_path.glob(".*")] == [next(tmp_path.glob(".index.json.*.part")).name]
    merge_index(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "index.json"]
