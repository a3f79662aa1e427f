"""A cache that is built while it is read: readers wait for a part, and hear if it cannot come."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import CacheError
from penstock.interrupts import WaitingFor

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.pipeline.caching.build import PartDone

    # Builds a cache: tells of each part, and asks whether to stop.
    Run = Callable[[Callable[[PartDone], None], Callable[[], bool]], None]


class BackgroundBuild:
    """Builds a cache in a thread, until it is whole, stopped, or this object is not held any more."""

    def __init__(self, run: Run, where: str, num_parts: int) -> None:
        self._where = where
        self._parts: list[Future[PartDone]] = [Future() for _ in range(num_parts)]
        self._whole: Future[None] = Future()
        stopped = threading.Event()
        every: list[Future[Any]] = [*self._parts, self._whole]
        self._stop = weakref.finalize(self, _stop, stopped, every, where)
        arguments = (run, self._parts, self._whole, stopped)
        threading.Thread(target=_build, args=arguments, name="penstock-cache", daemon=True).start()

    @property
    def is_whole(self) -> bool:
        """Whether all is built."""
        return self._whole.done() and self._whole.exception() is None

    def wait_for(self, number: int) -> PartDone:
        """Wait for a part; if it cannot come, the reason is raised."""
        with WaitingFor(f"part {number} of the cache at {self._where}"):
            return self._parts[number].result()

    def wait_for_all(self) -> None:
        """Wait until the cache is whole."""
        with WaitingFor(f"the cache at {self._where}"):
            self._whole.result()

    def stop(self) -> None:
        """Stop after the parts that are under way; readers that wait are told so."""
        self._stop()


def _build(run: Run, parts: list[Future[PartDone]], whole: Future[None], stopped: threading.Event) -> None:
    """Build all parts. This function knows nothing of the object that readers ask, so that it can go."""

    def note(part: PartDone) -> None:
        with suppress(InvalidStateError):  # it was stopped
            parts[part.number].set_result(part)

    try:
        run(note, stopped.is_set)
        whole.set_result(None)
    except BaseException as error:  # noqa: BLE001  raised again where it is waited for
        _fail([*parts, whole], error)


def _stop(stopped: threading.Event, futures: list[Future[Any]], where: str) -> None:
    stopped.set()
    _fail(futures, CacheError(f"the building of the cache at {where} was stopped: build it again to go on"))


def _fail(futures: list[Future[Any]], error: BaseException) -> None:
    """Have those that are not done raise an error."""
    for future in futures:
        with suppress(InvalidStateError):
            future.set_exception(error)
