"""Threads for work in the background: they come as they are needed, and end when they no longer are."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


def call_all(calls: Sequence[Callable[[], T]], most: int, name: str) -> list[T]:
    """Return what all calls give, in order, made by at most so many threads.

    The first failure, in their order, is raised at once, and so is an interrupt, whatever the others wait for.
    """
    with WorkerThreads(min(most, len(calls)), name) as threads:
        running = [threads.submit(call) for call in calls]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        return [each.result() for each in running if each in done]


class _Crew:
    """The threads of an executor, which they must not keep alive, and what they have to do."""

    def __init__(self, most: int, name: str, rest_s: float | None) -> None:
        self._most, self._name, self._rest_s = most, name, rest_s
        self._lock = threading.RLock()  # the collector may drop an executor at any time
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._num_threads = 0
        self.num_idle = 0  # threads that wait for work, but for as many as work has come for
        self._num_later = 0  # how much of the work waits for a thread that is busy
        self._has_left = False
        _crews.add(self)

    def submit(self, action: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._has_left:
                raise RuntimeError(f"{self._name} was shut down")
            self._work.put((future, action))
            if self.num_idle:
                self.num_idle -= 1
            elif self._num_threads < self._most:
                self._num_threads += 1
                thread = threading.Thread(target=self._do_all, name=self._name, daemon=True)
                _threads.add(thread)
                thread.start()
            else:
                self._num_later += 1
        return future

    def leave(self, *, cancels: bool) -> None:
        with self._lock:
            if self._has_left:
                return
            self._has_left = True
            if cancels:
                self._num_later = 0
                with suppress(queue.Empty):
                    while item := self._work.get_nowait():
                        item[0].cancel()
            for _ in range(self._num_threads):
                self._work.put(None)

    def _do_all(self) -> None:
        item = self._work.get()
        while item is not None:
            future, action = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(action())
                except BaseException as error:  # noqa: BLE001  raised again where the result is waited for
                    future.set_exception(error)
            del item, future, action  # they may hold much memory, and the next may be long in coming
            item = self._next()

    def _next(self) -> Work | None:
        """Wait for work; None: this thread is not needed any more."""
        with self._lock:
            if self._num_later:
                self._num_later -= 1
                return self._work.get()
            if self._has_left:
                return None
            self.num_idle += 1
        with suppress(queue.Empty):
            return self._work.get(timeout=self._rest_s)
        with self._lock:
            if self.num_idle:
                self.num_idle -= 1
                self._num_threads -= 1
                return None
        return self._work.get()  # it came at the last moment


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
