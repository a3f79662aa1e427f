"""Threads for work in the background: they come as they are needed, and end when they no longer are."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    Work = tuple[Future[Any], Callable[[], Any]]

T = TypeVar("T")

_LEAVING_S = 1.0


class WorkerThreads(Executor):
    """An executor whose threads end with the process, also while one of them waits for a store that is away.

    Those of the standard library are waited for when the process ends, and every thread that was ever needed stays.
    These also end when they have had nothing to do for `rest_s`, and when this object is shut down or dropped.
    """

    def __init__(self, most: int, name: str, rest_s: float | None = None) -> None:
        self._crew = _Crew(most, name, rest_s)
        self._leave = weakref.finalize(self, self._crew.leave, cancels=True)

    def submit(self, action: Callable[..., T], /, *arguments: Any, **options: Any) -> Future[T]:
        """Have a function called by one of the threads, in the order of asking."""
        return self._crew.submit(partial(action, *arguments, **options))

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:  # noqa: ARG002
        """Begin nothing more, or only what waits; threads end after what they are doing, and are not waited for."""
        self._crew.leave(cancels=cancel_futures)


class _Crew:
    """The threads of an executor, which they must not keep alive, and what they have to do."""

    def __init__(self, most: int, name: str, rest_s: float | None) -> None:
        self._most, self._name, self._rest_s = most, name, rest_s
        self._lock = threading.RLock()  # the collector may drop an executor at any time
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self.idle = threading.Semaphore(0)  # threads that wait for work, less the work that comes to them
        self._num_threads = 0
        self._has_left = False
        _crews.add(self)

    def submit(self, action: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._has_left:
                raise RuntimeError(f"{self._name} was shut down")
            self._work.put((future, action))
            if not self.idle.acquire(blocking=False) and self._num_threads < self._most:
                self._num_threads += 1
                thread = threading.Thread(target=self._do_all, name=self._name, daemon=True)
                _threads.add(thread)
                thread.start()
        return future

    def leave(self, *, cancels: bool) -> None:
        with self._lock:
            if self._has_left:
                return
            self._has_left = True
            with suppress(queue.Empty):
                while cancels and (item := self._work.get_nowait()) is not None:
                    item[0].cancel()
            for _ in range(self._num_threads):
                self._work.put(None)

    def _do_all(self) -> None:
        while (item := self._next()) is not None:
            future, action = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(action())
                except BaseException as error:  # noqa: BLE001  raised again where the result is waited for
                    future.set_exception(error)
            del item, future, action  # they may hold much memory, and the next may be long in coming

    def _next(self) -> Work | None:
        """Wait for work; None: this thread is not needed any more."""
        with suppress(queue.Empty):
            return self._work.get_nowait()
        self.idle.release()
        with suppress(queue.Empty):
            return self._work.get(timeout=self._rest_s)
        with self._lock:
            if self.idle.acquire(blocking=False):  # else some has come for it at the last moment
                self._num_threads -= 1
                return None
        return self._work.get()


_crews: weakref.WeakSet[_Crew] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """Leave threads a moment before the interpreter goes: libraries such as JAX abort in one that outlives it."""
    for crew in list(_crews):
        crew.leave(cancels=True)
    deadline = time.monotonic() + _LEAVING_S
    for thread in list(_threads):
        thread.join(max(0.0, deadline - time.monotonic()))
