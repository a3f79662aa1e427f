"""Threads of the scheduler, which fetch one item after the other."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Workers(Generic[T]):
    """Threads that take work and do it. They come when they are needed, at most so many, and stay until `close`.

    They share the lock of whoever owns them: `count` and `take` are called with it held, `work` without it.
    """

    def __init__(
        self,
        lock: Any,
        *,
        count: Callable[[], int],  # how much there is to do, begun or not
        is_any_left: Callable[[], bool],  # whether some of it may not have begun
        take: Callable[[int], T | None],  # given how many threads are busy
        work: Callable[[T], None],
        most: int,
    ) -> None:
        self.num_idle = 0
        self._changed = threading.Condition(lock)
        self._count = count
        self._is_any_left = is_any_left
        self._take = take
        self._work = work
        self._most = most
        self._threads: set[threading.Thread] = set()
        self._is_closed = False

    def call(self) -> None:
        """With the lock: see to it that somebody looks for work, if there is any."""
        if self._is_closed or not self._is_any_left():
            return
        if self.num_idle == 0 and len(self._threads) < min(self._most, self._count()):
            thread = threading.Thread(target=self._run, name="penstock-download", daemon=True)
            self._threads.add(thread)
            thread.start()
        self._changed.notify()

    def close(self) -> None:
        """With the lock: let each end when it is done with what it does."""
        self._is_closed = True
        self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait until all have ended, and tell whether they have."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._threads and (left_s := deadline - time.monotonic()) > 0:
                self._changed.wait(left_s)
            return not self._threads

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                self._work(work)
                del work  # it may hold much memory, and the next may be long in coming
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())
                self._changed.notify_all()

    def _next(self) -> T | None:
        with self._changed:
            work = None
            self.num_idle += 1
            try:
                while not self._is_closed and (work := self._take(len(self._threads) - self.num_idle)) is None:
                    self._changed.wait()
            finally:
                self.num_idle -= 1
            if work is not None:
                self.call()  # there may be more that can begin now
            return work
