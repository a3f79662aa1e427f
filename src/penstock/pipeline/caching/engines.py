"""Who makes the parts of a cache, if not this process: a pool of processes, or Ray. The result is the same."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.data.orphans import end_with_parent
from penstock.errors import CacheError, ConfigError, StoreError
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from penstock.pipeline.config import RayConfig
    from penstock.publish.materialise import Task

Done = TypeVar("Done")
Running = TypeVar("Running")

_MOST_FAILURES = 3  # of processes that died, without a part in between
_MOST_RETRIES = 3  # of a task of Ray


def _make_side_by_side(
    numbers: Sequence[int],
    at_once: int,
    begin: Callable[[int], Running],
    wait_for_some: Callable[[list[Running]], Iterable[Running]],
    running: dict[Running, int],
) -> Generator[tuple[int, Running]]:
    """Begin with parts in order, so many at a time, and yield each that has ended; `running` are the others."""
    waiting = list(reversed(numbers))
    while waiting or running:
        while waiting and len(running) < at_once:
            number = waiting.pop()
            running[begin(number)] = number
        for ended in wait_for_some(list(running)):
            yield running.pop(ended), ended


# --- Processes ----------------------------------------------------------------------------------------------


class ProcessPool:
    """Makes so many parts at a time, each in a process of its own that is started afresh."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers

    def make(self, task: Task[Done], numbers: Sequence[int], *, waits: bool) -> Generator[tuple[int, Done | None]]:
        """Have parts made. A process that dies is replaced, and its part is gone on with."""
        left, failures = list(numbers), 0
        while left:
            try:
                with closing(self._make_once(task, left, waits=waits)) as made:
                    for number, done in made:
                        left.remove(number)
                        failures = 0
                        yield number, done
            except BrokenProcessPool as error:
                failures += 1
                if failures == _MOST_FAILURES:
                    raise CacheError(
                        f"processes that build {task.shown} died {failures} times in a row. If memory ran out, use"
                        " fewer workers; a script that builds with workers must do so below"
                        " if __name__ == '__main__':, because each of them loads it. What is built is kept"
                    ) from error

    def _make_once(
        self, task: Task[Done], numbers: Sequence[int], *, waits: bool
    ) -> Generator[tuple[int, Done | None]]:
        # Forked children would have our locks, and none of our threads.
        workers = min(self._num_workers, len(numbers))
        pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_start_worker, initargs=(task,))
        running: dict[Future[Any], int] = {}
        try:
            for number, ended in _make_side_by_side(
                numbers,
                2 * workers,
                lambda number: pool.submit(_make_part_of_worker, number, waits),
                lambda futures: wait(futures, return_when=FIRST_COMPLETED).done,
                running,
            ):
                yield number, ended.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_task: Task[Any] | None = None  # of a worker process, which is sent it once


def _start_worker(task: Task[Any]) -> None:
    global _task
    end_with_parent()
    _task = task


def _make_part_of_worker(number: int, waits: bool) -> Any:
    assert _task is not None  # noqa: S101  the initializer has run
    return _task.make_part(number, waits=waits)


# --- Ray ----------------------------------------------------------------------------------------------------


class RayEngine:
    """Makes so many parts at a time, each as a task of Ray; a task whose worker dies is run again."""

    def __init__(self, config: RayConfig) -> None:
        self._config = config

    def make(self, task: Task[Done], numbers: Sequence[int], *, waits: bool) -> Generator[tuple[int, Done | None]]:
        """Have parts made: tasks are sent which shards to read, and read them where they run."""
        if not numbers:
            return
        ray = start_ray(self._config)
        remote = ray.remote(_make_part_of_ray).options(**task_options(self._config))
        shared = ray.put(task)  # once for all tasks
        running: dict[Any, int] = {}
        try:
            for number, ended in _make_side_by_side(
                numbers,
                self._config.num_workers,
                lambda number: remote.remote(shared, number, waits),
                lambda references: ray.wait(references, num_returns=1)[0],
                running,
            ):
                yield number, _result(ray, ended)
        finally:
            for reference in running:
                ray.cancel(reference)


def start_ray(config: RayConfig) -> Any:
    """Connect to the cluster that the environment names, or start one on this machine, unless that has been done."""
    ray = require("ray", extra="ray", purpose="spreading work with Ray")
    if not ray.is_initialized():
        own = {} if config.object_store_memory is None else {"object_store_memory": config.object_store_memory}
        try:
            ray.init(log_to_driver=False, include_dashboard=False, **own)
        except ValueError as error:
            raise ConfigError(f"Ray does not start with these settings: {error}") from error
    return ray


def task_options(config: RayConfig) -> dict[str, Any]:
    """Return what a task needs, in the words of Ray."""
    needs = dict(config.resources_per_worker or {})
    options: dict[str, Any] = {
        "num_cpus": needs.pop("CPU", 1),
        "num_gpus": needs.pop("GPU", 1 if config.use_gpu else 0),
        "max_retries": _MOST_RETRIES,
        "retry_exceptions": [StoreError],
    }
    return {**options, "resources": needs} if needs else options


def _make_part_of_ray(task: Task[Any], number: int, waits: bool) -> Any:
    return task.make_part(number, waits=waits)


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, Exception) else error) from error
