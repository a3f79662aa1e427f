"""Threads of the scheduler: those that fetch one item after the other, and one that looks again from time to time."""

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


class Clock:
    """A thread that is there while it is needed, and calls a function every so often, or sooner if asked to.

    It shares the lock of whoever owns it: `is_needed` and `next_at` are called with it held, `on_time` without it.
    """

    def __init__(
        self,
        lock: Any,
        *,
        is_needed: Callable[[], bool],
        next_at: Callable[[], float],  # something is due then, besides
        on_time: Callable[[bool], None],  # given whether the period is over
        period_s: float,
    ) -> None:
        self._changed = threading.Condition(lock)
        self._is_needed = is_needed
        self._next_at = next_at
        self._on_time = on_time
        self._period_s = period_s
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """With the lock: start if it is needed now, and look when the next thing is due."""
        if self._thread is None and self._is_needed():
            self._thread = threading.Thread(target=self._run, name="penstock-clock", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _run(self) -> None:
        period_ends = time.monotonic() + self._period_s
        is_over = False
        while not is_over:
            with self._changed:
                left_s = min(period_ends, self._next_at()) - time.monotonic()
                if left_s > 0 and self._is_needed():
                    self._changed.wait(left_s)
            is_period = time.monotonic() >= period_ends
            if is_period:
                period_ends = time.monotonic() + self._period_s
            self._on_time(is_period)
            with self._changed:
                is_over = not self._is_needed()
                if is_over:
                    self._thread = None
