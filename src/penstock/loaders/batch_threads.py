"""Batches made ahead: one thread takes rows in order and collates them, or has others do it if that takes long.

Batches come out in the order of the rows in either case.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.blocks.worker_threads import WorkerThreads
from penstock.loaders.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from penstock.blocks.block import Block

    # The rows of batches, each with something that belongs to it.
    RowsOfBatches = Iterator[tuple[Block, Any]]

_QUICK_S = 0.002  # handing work to another thread would take longer, or not much less


def make_batches(
    open_rows: Callable[[WorkerThreads | None], RowsOfBatches],
    make: Callable[[Block], Any],
    *,
    num_threads: int,
    num_ahead: int,
) -> Generator[tuple[Any, Any]]:
    """Make a batch of some rows at a time, ahead of whoever takes them; with 0 threads, when they are taken.

    Whoever stops taking, by closing the iterator or losing it, ends the threads.
    """
    if num_threads == 0:
        rows = open_rows(None)
        try:
            for some, label in rows:
                yield make(some), label
        finally:
            _close(rows)
        return
    workers = WorkerThreads(num_threads, "penstock-prefetch")
    timed = _Timed(make)

    def make_all() -> Iterator[tuple[Any, Any]]:
        rows = open_rows(workers)
        try:
            for some, label in rows:
                yield workers.submit(timed, some) if timed.seconds > _QUICK_S else _Made(timed(some)), label
        finally:
            _close(rows)

    ahead = in_thread(make_all, ahead=num_ahead)
    try:
        for made, label in ahead:
            yield made.result(), label
    finally:
        workers.shutdown()
        _close(ahead)


class _Timed:
    """A function that makes batches, and how long it took the last time."""

    def __init__(self, make: Callable[[Block], Any]) -> None:
        self._make, self.seconds = make, 0.0

    def __call__(self, rows: Block) -> Any:
        begin = time.perf_counter()
        batch = self._make(rows)
        self.seconds = time.perf_counter() - begin
        return batch


class _Made:
    """A batch that is there already, where others are awaited."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def result(self) -> Any:
        return self._batch


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
