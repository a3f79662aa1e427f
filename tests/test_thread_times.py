"""Where the time of a thread goes: noted by what waits and what decodes, each thread by itself."""

from __future__ import annotations

import threading
import time

from penstock.thread_times import decoding, reading_inside, thread_times, waiting


def spend(what: object) -> None:
    with what:  # type: ignore[attr-defined]
        time.sleep(0.002)


def test_each_kind_is_summed_up() -> None:
    thread_times.waiting_ns = thread_times.decoding_ns = 0
    spend(waiting)
    spend(waiting)
    assert thread_times.waiting_ns >= 4_000_000
    assert thread_times.decoding_ns == 0
    spend(decoding)
    assert thread_times.decoding_ns >= 2_000_000


def test_threads_do_not_see_each_other() -> None:
    thread_times.waiting_ns = 0
    thread = threading.Thread(target=spend, args=(waiting,))
    thread.start()
    thread.join()
    assert thread_times.waiting_ns == 0


def test_a_reader_within_decoding_waits_as_one_that_waits() -> None:
    thread_times.waiting_ns = thread_times.decoding_ns = 0
    with decoding, reading_inside():
        spend(waiting)
        spend(decoding)
    assert thread_times.waiting_ns >= 2_000_000
    assert thread_times.decoding_ns >= 2_000_000
