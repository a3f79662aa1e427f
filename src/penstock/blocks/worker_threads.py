"""A few threads that do small pieces of work, and end when they are no longer needed."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Work = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


_LEAVING_S = 1.0


class WorkerThreads(Executor):
    """An executor whose threads end with the process, also while one of them waits for a store that is away.

    Those of the standard library are waited for when the process ends. Threads also end when this object is shut down
    or dropped; work that has not begun is cancelled then.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._num_threads = num_threads
        for _ in range(num_threads):
            thread = threading.Thread(target=_do_all, args=(self._work,), name=name, daemon=True)
            thread.start()
            _threads.add(thread)
        _executors.add(self)
        self._finish = weakref.finalize(self, _finish, self._work, num_threads)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a function called by one of the threads."""
        future: Future[Any] = Future()
        if not self._finish.alive:
            raise RuntimeError("these threads have been shut down")
        self._work.put((future, fn, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Cancel what has not begun, and have the threads end after what they are doing."""
        self._finish()


_executors: weakref.WeakSet[WorkerThreads] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # also of executors that are gone


@atexit.register
def _leave_all() -> None:
    """Leave threads a moment before the interpreter goes: libraries such as JAX abort in one that outlives it."""
    for executor in list(_executors):
        executor.shutdown()
    deadline = time.monotonic() + _LEAVING_S
    for thread in list(_threads):
        thread.join(max(0.0, deadline - time.monotonic()))


def _do_all(work: queue.SimpleQueue[Work | None]) -> None:
    while (item := work.get()) is not None:
        future, function, args, kwargs = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  raised again where the result is waited for
                future.set_exception(error)
        del item, future, function, args, kwargs  # nothing is kept while waiting


def _finish(work: queue.SimpleQueue[Work | None], num_threads: int) -> None:
    with suppress(queue.Empty):
        while True:
            item = work.get_nowait()
            if item is not None:
                item[0].cancel()
    for _ in range(num_threads):
        work.put(None)
