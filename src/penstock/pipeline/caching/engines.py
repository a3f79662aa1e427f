"""Who builds the parts of a cache: this process, a pool of processes, or Ray. The result is the same."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing import get_context
from typing import TYPE_CHECKING, Protocol

from penstock.data.orphans import end_with_parent
from penstock.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from penstock.pipeline.caching.build import CacheBuild, PartDone

    Built = tuple[int, PartDone | None]

_MOST_FAILURES = 3  # of processes that died, without a part in between


class Engine(Protocol):
    """Has parts built by somebody. It gives each as it is done, in any order, or None if somebody else is at it."""

    def build(self, job: CacheBuild, numbers: Sequence[int], *, waits: bool) -> Generator[Built]:
        """Have parts built; with `waits`, those that others are building are waited for."""
        ...


class ThisProcess:
    """Builds one part after the other, here."""

    def build(self, job: CacheBuild, numbers: Sequence[int], *, waits: bool) -> Generator[Built]:
        """Build parts."""
        for number in numbers:
            yield number, job.build_part(number, waits=waits)


class ProcessPool:
    """Builds so many parts at a time, each in a process of its own that is started afresh."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers

    def build(self, job: CacheBuild, numbers: Sequence[int], *, waits: bool) -> Generator[Built]:
        """Have parts built. A process that dies is replaced, and its part is gone on with."""
        left, failures = list(numbers), 0
        while left:
            try:
                with closing(self._build_once(job, left, waits=waits)) as built:
                    for number, done in built:
                        left.remove(number)
                        failures = 0
                        yield number, done
            except BrokenProcessPool as error:
                failures += 1
                if failures == _MOST_FAILURES:
                    raise CacheError(
                        f"processes that build the cache at {job.place.shown} died {failures} times in a row. If"
                        " memory ran out, use fewer workers; a script that builds with workers must do so below"
                        " if __name__ == '__main__':, because each of them loads it. What is built is kept"
                    ) from error

    def _build_once(self, job: CacheBuild, numbers: Sequence[int], *, waits: bool) -> Generator[Built]:
        # Forked children would have our locks, and none of our threads.
        workers = min(self._num_workers, len(numbers))
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(job,))
        try:
            running: dict[Future[PartDone | None], int] = {}
            waiting = list(reversed(numbers))
            while waiting or running:
                while waiting and len(running) < 2 * workers:
                    number = waiting.pop()
                    running[pool.submit(_build_part, number, waits)] = number
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield running.pop(future), future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_job: CacheBuild | None = None  # of a worker process, which is sent it once


def _start_worker(job: CacheBuild) -> None:
    global _job
    end_with_parent()
    _job = job


def _build_part(number: int, waits: bool) -> PartDone | None:
    assert _job is not None  # noqa: S101  the initializer has run
    return _job.build_part(number, waits=waits)


def build_all(
    job: CacheBuild, engine: Engine, on_part: Callable[[PartDone], None], stopped: Callable[[], bool]
) -> None:
    """Build what is not built yet, and join it: first all that is free, then what others were at."""
    left: list[int] = []
    for number in range(len(job.plan.parts)):
        done = job.find_part(number)
        if done is None:
            left.append(number)
        else:
            on_part(done)
    for waits in (False, True):
        busy: list[int] = []
        with closing(engine.build(job, left, waits=waits)) as built:
            for number, done in built:
                if done is None:
                    busy.append(number)
                else:
                    on_part(done)
                if stopped():
                    return
        left = sorted(busy)
    job.finish()
