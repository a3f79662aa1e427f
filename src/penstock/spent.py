"""What the time of a thread goes to while it reads: those who wait and those who decode note it where it happens."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Spent(threading.local):
    """Nanoseconds of this thread, since whoever reads last set them to zero."""

    begun_ns = 0
    waiting_ns = 0  # for a store, or for a shard that is on its way
    decoding_ns = 0
    is_collating = False


spent = _Spent()


class _Waiting:
    def __enter__(self) -> None:
        spent.begun_ns = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        spent.waiting_ns += perf_counter_ns() - spent.begun_ns


class _Decoding:
    def __enter__(self) -> None:
        spent.begun_ns = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        spent.decoding_ns += perf_counter_ns() - spent.begun_ns


waiting, decoding = _Waiting(), _Decoding()  # for `with`; one never stands within another


@contextmanager
def reading_inside() -> Iterator[None]:
    """Have another reader work within `decoding`: what it waits for counts as waiting, all else as decoding."""
    begun_ns, waiting_ns, decoding_ns = spent.begun_ns, spent.waiting_ns, spent.decoding_ns
    try:
        yield
    finally:
        waited_ns = spent.waiting_ns - waiting_ns
        spent.begun_ns, spent.decoding_ns = begun_ns + waited_ns, decoding_ns
