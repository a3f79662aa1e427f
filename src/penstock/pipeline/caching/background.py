"""A cache that is built while it is read: who reads waits for a part, and hears if it cannot come."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from penstock.errors import CacheError
from penstock.interrupts import WaitingFor

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.pipeline.caching.build import PartDone

    # Builds a cache: tells of each part, and asks whether to stop.
    Run = Callable[[Callable[[PartDone], None], Callable[[], bool]], None]


class _Progress:
    """What the thread that builds tells those who wait; it knows nothing of the object that they ask."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.parts: dict[int, PartDone] = {}
        self.failure: BaseException | None = None
        self.is_whole = self.is_stopped = self.has_ended = False

    @property
    def is_over(self) -> bool:
        return self.has_ended or self.is_stopped

    def add(self, part: PartDone) -> None:
        with self.changed:
            self.parts[part.number] = part
            self.changed.notify_all()

    def end(self, failure: BaseException | None) -> None:
        with self.changed:
            self.failure, self.has_ended = failure, True
            self.is_whole = failure is None and not self.is_stopped
            self.changed.notify_all()


class BackgroundBuild:
    """Builds a cache in a thread, until it is whole, stopped, or nobody holds this object any more."""

    def __init__(self, run: Run, where: str) -> None:
        self._where, self._progress = where, _Progress()
        self._stop = weakref.finalize(self, _stop, self._progress)
        threading.Thread(target=_build, args=(run, self._progress), name="penstock-cache", daemon=True).start()

    @property
    def is_whole(self) -> bool:
        """Whether all is built."""
        return self._progress.is_whole

    def wait_for(self, number: int) -> PartDone:
        """Wait for a part; if it cannot come, the reason is raised."""
        progress = self._progress
        with WaitingFor(f"part {number} of the cache at {self._where}"), progress.changed:
            progress.changed.wait_for(lambda: number in progress.parts or progress.is_over)
            self._check(number in progress.parts)
            return progress.parts[number]

    def wait_for_all(self) -> None:
        """Wait until the cache is whole."""
        progress = self._progress
        with WaitingFor(f"the cache at {self._where}"), progress.changed:
            progress.changed.wait_for(lambda: progress.is_over)
            self._check(progress.is_whole)

    def stop(self) -> None:
        """Stop after the parts that are under way; who waits is told so."""
        self._stop()

    def _check(self, is_there: bool) -> None:
        if is_there:
            return
        if self._progress.failure is not None:
            raise self._progress.failure
        raise CacheError(f"the building of the cache at {self._where} was stopped: build it again to go on")


def _build(run: Run, progress: _Progress) -> None:
    failure: BaseException | None = None
    try:
        run(progress.add, lambda: progress.is_stopped)
    except BaseException as error:  # noqa: BLE001  raised again by whoever waits
        failure = error
    progress.end(failure)


def _stop(progress: _Progress) -> None:
    with progress.changed:
        progress.is_stopped = True
        progress.changed.notify_all()
