"""Several iterators side by side, each in a thread, their items taken in turn."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

_END = object()


class _Failure:
    """An error on its way to whoever takes the next item."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def in_threads(sources: Sequence[Callable[[], Iterator[T]]], *, ahead: int) -> Iterator[T]:
    """Give an item of each source in turn, while the threads read up to `ahead` items further.

    Ends at the first source that ends. An error of a source is raised where its item would have been. Whoever stops
    taking, by closing the iterator or losing it, ends the threads.
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
        for line, thread in zip(queues, threads, strict=True):
            while thread.is_alive():  # it may wait for room in its queue: make some
                try:
                    line.get(timeout=0.01)
                except queue.Empty:
                    thread.join(timeout=0.01)


def _read(source: Callable[[], Iterator[T]], line: queue.Queue[Any], stopped: threading.Event) -> None:
    try:
        for item in source():
            if stopped.is_set():
                return
            line.put(item)
        line.put(_END)
    except BaseException as error:  # noqa: BLE001  it is raised again by whoever waits for the item
        line.put(_Failure(error))
