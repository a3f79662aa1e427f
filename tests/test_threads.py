"""Threads that come as they are needed."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from penstock.errors import StoreError
from penstock.threads import WorkerThreads, call_all
from tests.cache.kit import wait_until


def named(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_as_many_threads_as_there_is_work_up_to_a_bound() -> None:
    threads, gate = WorkerThreads(3, "test-bound", rest_s=0.05), threading.Event()
    waiting = [threads.submit(gate.wait) for _ in range(10)]
    assert named("test-bound") == 3
    gate.set()
    assert all(future.result(30) for future in waiting)
    wait_until(lambda: named("test-bound") == 0)
    assert threads.submit(divmod, 7, 2).result(30) == (3, 1)  # and they come back


def test_a_thread_that_rests_is_used_again() -> None:
    threads = WorkerThreads(5, "test-rest", rest_s=30)
    idents = set()
    for _ in range(20):
        idents.add(threads.submit(threading.get_ident).result(30))
        wait_until(lambda: threads._crew.num_idle == 1)
    assert len(idents) == 1
    threads.shutdown()
    wait_until(lambda: named("test-rest") == 0)
    with pytest.raises(RuntimeError, match="test-rest"):
        threads.submit(print)


def test_errors_come_where_the_result_is_waited_for_and_what_has_not_begun_is_cancelled() -> None:
    threads, gate = WorkerThreads(1, "test-errors"), threading.Event()
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result(30)
    running, waiting = threads.submit(gate.wait), threads.submit(print)
    wait_until(running.running)
    threads.shutdown()
    assert waiting.cancelled()
    gate.set()
    assert running.result(30)


def test_a_dropped_executor_ends_its_threads_and_what_waits_may_still_be_done() -> None:
    threads, gate = WorkerThreads(1, "test-dropped"), threading.Event()
    running, waiting = threads.submit(gate.wait), threads.submit(divmod, 7, 2)
    threads.shutdown(cancel_futures=False)
    gate.set()
    assert running.result(30)
    assert waiting.result(30) == (3, 1)
    wait_until(lambda: named("test-dropped") == 0)
    threads = WorkerThreads(1, "test-dropped")
    assert threads.submit(divmod, 7, 2).result(30) == (3, 1)
    del threads
    wait_until(lambda: named("test-dropped") == 0)


# --- Several calls at a time ------------------------------------------------------------------------------------


def test_answers_come_in_order_however_many_there_are() -> None:
    assert call_all([partial(int, number) for number in range(100)], 7, "test-all") == list(range(100))
    assert call_all([], 7, "test-all") == []


def test_all_are_asked_at_the_same_time() -> None:
    together = threading.Barrier(10, timeout=60)
    assert sorted(call_all([together.wait] * 10, 32, "test-all")) == list(range(10))


def test_an_error_is_raised_though_others_are_still_waiting() -> None:
    gate = threading.Event()

    def fail() -> bool:
        raise StoreError("away")

    try:
        with pytest.raises(StoreError, match="away"):
            call_all([fail, gate.wait], 2, "test-all")
    finally:
        gate.set()
