"""What the time of a thread goes to while it reads: those who wait and those who decode note it where it happens."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _ThreadTimes(threading.local):
    """Nanoseconds of this thread, since its reader last set them to zero."""

    begun_ns = 0
    waiting_ns = 0  # for a store, or for a shard that is being fetched
    decoding_ns = 0
    is_collating = False


thread_times = _ThreadTimes()


class _TimedBlock:
    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        thread_times.begun_ns = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        passed_ns = perf_counter_ns() - thread_times.begun_ns
        setattr(thread_times, self._name, getattr(thread_times, self._name) + passed_ns)


waiting, decoding = _TimedBlock("waiting_ns"), _TimedBlock("decoding_ns")  # for `with`; one never stands within another


@contextmanager
def reading_inside() -> Iterator[None]:
    """Have another reader work within `decoding`: what it waits for counts as waiting, all else as decoding."""
    begun_ns, waiting_ns, decoding_ns = thread_times.begun_ns, thread_times.waiting_ns, thread_times.decoding_ns
    try:
        yield
    finally:
        waited_ns = thread_times.waiting_ns - waiting_ns
        thread_times.begun_ns, thread_times.decoding_ns = begun_ns + waited_ns, decoding_ns
