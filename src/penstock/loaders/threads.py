"""Several iterators side by side, each in a thread, their items taken in turn."""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

_END = object()
_LEAVING_S = 1.0


class _Failure:
    """An error on its way to whoever takes the next item."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def in_threads(
    sources: Sequence[Callable[[], Iterator[T]]], *, ahead: int, on_abandon: Callable[[], None] = lambda: None
) -> Iterator[T]:
    """Give an item of each source in turn, while the threads read up to `ahead` items further.

    Ends at the first source that ends. An error of a source is raised where its item would have been. Whoever stops
    taking, by closing the iterator or losing it, ends the threads. Those that wait for a store which is away are not
    waited for: `on_abandon` hears of it, and what they use is theirs until they are done.
    """
    stopped = threading.Event()
    queues: list[queue.Queue[Any]] = [queue.Queue(maxsize=ahead) for _ in sources]
    threads = [
        threading.Thread(target=_read, args=(source, line, stopped), name="penstock-reader", daemon=True)
        for source, line in zip(sources, queues, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        while True:
            for line in queues:
                item = line.get()
                if item is _END:
                    return
                if isinstance(item, _Failure):
                    raise item.error
                yield item
    finally:
        stopped.set()
        if not _end(queues, threads):
            on_abandon()


def _end(queues: Sequence[queue.Queue[Any]], threads: Sequence[threading.Thread]) -> bool:
    """Wait a moment for the end of threads that were told to stop, and tell whether all came to it."""
    deadline = time.monotonic() + _LEAVING_S
    for line, thread in zip(queues, threads, strict=True):
        _make_room(line)  # for the one item that it may put before it looks whether it is to stop
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(timeout=0.01)
            _make_room(line)
    return not any(thread.is_alive() for thread in threads)


def _make_room(line: queue.Queue[Any]) -> None:
    with suppress(queue.Empty):
        while True:
            line.get_nowait()


def _read(source: Callable[[], Iterator[T]], line: queue.Queue[Any], stopped: threading.Event) -> None:
    try:
        for item in source():
            if stopped.is_set():
                return
            line.put(item)
        line.put(_END)
    except BaseException as error:  # noqa: BLE001  it is raised again by whoever waits for the item
        line.put(_Failure(error))
