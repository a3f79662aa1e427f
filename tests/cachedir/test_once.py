"""An array is computed by one process of the node; the others wait for it, and go on if that one is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.cachedir import once
from penstock.cachedir.layout import stripe_name, stripe_of
from penstock.cachedir.lock import lock_within
from penstock.cachedir.once import keep_in_files

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event
    from pathlib import Path

    import numpy.typing as npt

LENGTH = 1 << 20


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path))


def noted(folder: Path) -> npt.NDArray[Any]:
    """Compute an array and leave a trace of it."""
    (folder / f"computed-{os.getpid()}").touch()
    return np.arange(LENGTH)


def ask(folder: Path) -> None:
    found = keep_in_files("order", lambda: noted(folder))
    assert len(found) == LENGTH
    assert found[-1] == LENGTH - 1


def compute_for_ever(begun: Event) -> None:
    def compute() -> npt.NDArray[Any]:
        begun.set()
        signal.pause()
        raise AssertionError("it was to be killed")

    keep_in_files("order", compute)


def start(target: Any, *arguments: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


def test_one_of_many_processes_computes_it(tmp_path: Path) -> None:
    processes = [start(ask, tmp_path) for _ in range(6)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(list(tmp_path.glob("computed-*"))) == 1


def test_a_process_that_waits_goes_on_when_the_one_that_computes_is_killed(tmp_path: Path) -> None:
    begun = multiprocessing.get_context("fork").Event()
    slow = start(compute_for_ever, begun)
    assert begun.wait(30)
    waiting = start(ask, tmp_path)
    os.kill(slow.pid, signal.SIGKILL)
    slow.join(30)
    waiting.join(60)
    assert waiting.exitcode == 0


def test_its_lock_file_stays_so_that_no_process_locks_another_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "arrays" / stripe_name(stripe_of("order"))
    lock_within(path, 1).close()
    before = path.stat().st_ino
    ask(tmp_path)
    assert path.stat().st_ino == before


def test_a_process_that_has_waited_too_long_computes_it_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "_PATIENCE_S", 0.05)
    held = lock_within(tmp_path / "arrays" / stripe_name(stripe_of("order")), 1)
    try:
        ask(tmp_path)
    finally:
        held.close()
    assert not list((tmp_path / "arrays").glob("*.npy"))


def test_a_small_one_is_not_kept(tmp_path: Path) -> None:
    assert keep_in_files("small", lambda: np.arange(10)).tolist() == list(range(10))
    assert not list((tmp_path / "arrays").glob("*.npy"))


def test_each_kind_makes_room_for_its_own(tmp_path: Path) -> None:
    keep_in_files("first", lambda: np.arange(LENGTH))
    for number in range(3):
        keep_in_files(str(number), lambda: np.arange(10), min_values=0, kind="index", max_files=2)
    kept = sorted(path.name.split(".")[0] for path in (tmp_path / "arrays").glob("*.npy"))
    assert kept == ["index-1", "index-2", "order-first"]
