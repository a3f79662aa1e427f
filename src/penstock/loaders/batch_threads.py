"""Batches made ahead: one thread takes samples in order, others collate, and batches come out in the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.loaders.threads import in_thread
from penstock.sources.worker_threads import WorkerThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from penstock.sources.columns import Rows

    # The rows of batches, each with something that belongs to it.
    RowsOfBatches = Iterator[tuple[Rows, Any]]


def make_batches(
    open_rows: Callable[[WorkerThreads | None], RowsOfBatches],
    make: Callable[[Rows], Any],
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

    def submit_all() -> Iterator[tuple[Any, Any]]:
        rows = open_rows(workers)
        try:
            for some, label in rows:
                yield workers.submit(make, some), label
        finally:
            _close(rows)

    ahead = in_thread(submit_all, ahead=num_ahead)
    try:
        for future, label in ahead:
            yield future.result(), label
    finally:
        workers.shutdown()
        _close(ahead)


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
