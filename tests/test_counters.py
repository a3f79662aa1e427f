"""Counts of several processes: each has a row of its own, whatever dies, and all rows are seen at any time."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import counters as module
from penstock.counters import Counters, SharedFile
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("rows", "ns")
number_here: int | None = None  # what `worker_number` says in this process


def worker_number() -> int | None:
    return number_here


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


@pytest.fixture
def counters() -> Counters:
    return Counters(NAMES, worker_number)


def counted(counters: Counters) -> list[tuple[int | None, int]]:
    return [(counts.worker, counts.numbers["rows"]) for counts in counters.read()]


def count(counters: Counters, number: int, rows: int, turn: Any = None, *, dies: bool = False) -> None:
    global number_here
    number_here = number
    for _ in range(rows):
        counters.row().add({"rows": 1, "ns": 10})
    if turn is not None:
        turn.wait(60)  # until all are here
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)


def run(method: str, *targets: tuple[Any, ...], **options: Any) -> None:
    context: Any = multiprocessing.get_context(method)
    processes = [context.Process(target=count, args=args, kwargs=options) for args in targets]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert not process.is_alive()


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_all_passes_add_up(counters: Counters, places: Path, method: str, dies: bool) -> None:
    counters.row().add({"rows": 7})
    assert counted(counters) == [(None, 7)]
    for passed in (1, 2):
        run(method, (counters, 0, 10), (counters, 1, 20), dies=dies)
        assert counted(counters) == [(None, 7), (0, 10 * passed), (1, 20 * passed)]
    assert counters.read()[2].numbers == {"rows": 40, "ns": 400}
    assert not list((places / "run").iterdir())


def test_two_workers_of_one_number_do_not_disturb_each_other(counters: Counters) -> None:
    turn = multiprocessing.get_context("fork").Barrier(3)
    run("fork", *((counters, 0, 50_000, turn) for _ in range(3)))
    assert counted(counters) == [(0, 150_000)]


def test_counts_are_seen_while_they_grow(counters: Counters) -> None:
    context = multiprocessing.get_context("fork")
    turn = context.Barrier(2)
    process = context.Process(target=count, args=(counters, 3, 5, turn))
    process.start()
    while counted(counters) != [(3, 5)]:
        assert process.is_alive()
    turn.wait(60)
    process.join(60)


def test_a_process_that_is_no_worker_begins_anew(counters: Counters) -> None:
    """A rank that was started with a dataset counts for itself, and so do its workers."""
    counters.row().add({"rows": 1})
    run("fork", (counters, 0, 10))
    receiving, sending = multiprocessing.Pipe(duplex=False)
    if (child := os.fork()) == 0:
        run("fork", (counters, 0, 3))
        sending.send(counted(counters))
        os._exit(0)
    assert receiving.recv() == [(0, 3)]
    os.waitpid(child, 0)
    assert counted(counters) == [(None, 1), (0, 10)]
    copy = pickle.loads(pickle.dumps(counters))
    assert counted(copy) == []


def test_without_room_for_the_file_a_worker_counts_for_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counters = Counters(NAMES, lambda: 0)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    counters.row().add({"rows": 4})
    assert counted(counters) == [(None, 4)]
    assert "No space left" in caplog.text


def test_the_file_lies_in_the_runtime_folder_without_a_name(places: Path) -> None:
    counters = Counters(NAMES, lambda: 0)
    counters.row()
    mapped = [line.split()[-2:] for line in Path("/proc/self/maps").read_text().splitlines() if str(places) in line]
    assert {name for _, name in mapped} == {"(deleted)"}
    assert len({path for path, _ in mapped}) == 1


def test_a_file_is_closed_also_when_modules_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end, the interpreter sets what modules hold to None, while objects may still be there."""
    file = SharedFile(lambda: False, is_copied=False)
    descriptor = file.descriptor
    with monkeypatch.context() as patch:
        for name in ("os", "_NONE"):
            patch.setattr(module, name, None)
        file.__del__()
    file._descriptor = -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
