"""Threads for work that comes in bursts: as many as there is work for, up to a bound, and none for long without any."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

REST_S = 2.0  # how long a thread waits for more work before it ends


class ElasticThreads(Executor):
    """Runs what it is given in the order of asking.

    An executor of the standard library keeps every thread that it ever needed, and here each client may need one at
    some time.
    """

    def __init__(self, most: int, name: str, rest_s: float = REST_S) -> None:
        self._most, self._name, self._rest_s = most, name, rest_s
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._num_threads = self._num_idle = 0
        self._is_closed = False

    def submit(self, action: Callable[..., T], /, *arguments: Any, **options: Any) -> Future[T]:
        """Run something soon; the future gives its result or its error."""
        future: Future[T] = Future()
        with self._changed:
            if self._is_closed:
                raise RuntimeError(f"{self._name} was shut down")
            self._waiting.append((future, partial(action, *arguments, **options)))
            if self._num_idle < len(self._waiting) and self._num_threads < self._most:
                self._num_threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            else:
                self._changed.notify()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Begin nothing more; threads end when they are done with what they do, and nobody waits for them."""
        with self._changed:
            self._is_closed = True
            left = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            self._changed.notify_all()
        for future, _ in left:
            future.cancel()

    def _work(self) -> None:
        while (work := self._next()) is not None:
            future, action = work
            if future.set_running_or_notify_cancel():
                try:
                    result = action()
                except BaseException as error:  # noqa: BLE001  raised where the result is waited for
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del work, future, action  # they may hold much memory, and the next may be long in coming

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Wait for work; None: this thread is not needed any more."""
        with self._changed:
            self._num_idle += 1
            try:
                while not self._waiting:
                    if self._is_closed or not self._changed.wait(self._rest_s):
                        if self._waiting:  # it came at the last moment
                            break
                        self._num_threads -= 1
                        return None
                return self._waiting.popleft()
            finally:
                self._num_idle -= 1
