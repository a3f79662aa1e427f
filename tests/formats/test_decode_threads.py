"""Results come in the order of their items, whoever worked on them; errors come out; forks and workers are minded."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest

from penstock.formats.encodings import decoding
from penstock.formats.encodings.decoding import map_in_threads, num_threads


@pytest.fixture
def _four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


def square(number: int) -> int:
    return number * number


@pytest.mark.usefixtures("_four_processors")
@pytest.mark.parametrize("count", [*range(10), 100])
def test_results_come_in_order(count: int) -> None:
    assert map_in_threads(square, range(count)) == [square(number) for number in range(count)]


@pytest.mark.usefixtures("_four_processors")
def test_threads_work_at_the_same_time() -> None:
    """Each waits for the others: one after the other they would never be done."""
    meeting = threading.Barrier(4, timeout=30)
    assert len(set(map_in_threads(lambda _: meeting.wait(), range(4)))) == 4


@pytest.mark.usefixtures("_four_processors")
@pytest.mark.parametrize("bad", [0, 1, 7])
def test_an_error_comes_out_when_all_are_done(bad: int) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == bad:
            raise ValueError(f"bad {number}")
        done.append(number)

    with pytest.raises(ValueError, match=f"bad {bad}"):
        map_in_threads(work, range(8))
    assert {number for number in range(8) if number % 4 != bad % 4} <= set(done)


@pytest.mark.usefixtures("_four_processors")
def test_a_forked_process_starts_its_own_threads() -> None:
    map_in_threads(square, range(8))
    pid = os.fork()
    if pid == 0:
        is_right = map_in_threads(square, range(8)) == [square(number) for number in range(8)]
        os._exit(0 if is_right and decoding._pool.made is not None else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_workers_have_one_processor_and_ranks_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert num_threads() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert num_threads() == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100")
    assert num_threads() == 1
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(num_threads) == 1
