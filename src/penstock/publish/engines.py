"""Who runs the tasks of `materialise`: this process, others, Ray, Dask or Spark. The result is the same."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from penstock.errors import CacheError, ConfigError, StoreError
from penstock.extras import require
from penstock.processes import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

Done = TypeVar("Done")
Running = TypeVar("Running")

_MOST_FAILURES = 3  # of processes that died, without a task done in between
_MOST_RETRIES = 3  # of a task of Ray


class Engine(Protocol):
    """Has tasks run by a process."""

    def run(self, task: Callable[[int], Done], numbers: Sequence[int], shown: str, /) -> Generator[tuple[int, Done]]:
        """Call a function, which pickles, for each number; yield each with its result as it is done, in any order."""


class ThisProcess:
    """Runs one task after the other, here."""

    def run(self, task: Callable[[int], Done], numbers: Sequence[int], _shown: str, /) -> Generator[tuple[int, Done]]:
        """Run tasks."""
        for number in numbers:
            yield number, task(number)


# --- Processes --------------------------------------------------------------------------------------------------


def _run_side_by_side(
    numbers: Sequence[int],
    at_once: int,
    begin: Callable[[int], Running],
    wait_for_some: Callable[[list[Running]], Iterable[Running]],
    running: dict[Running, int],
) -> Generator[tuple[int, Running]]:
    """Begin with tasks in order, so many at a time, and yield each that has ended; `running` are the others."""
    waiting = list(reversed(numbers))
    while waiting or running:
        while waiting and len(running) < at_once:
            number = waiting.pop()
            running[begin(number)] = number
        for ended in wait_for_some(list(running)):
            yield running.pop(ended), ended


@dataclass(frozen=True, slots=True)
class ProcessPool:
    """Runs so many tasks at a time, each in a process of its own that is started afresh."""

    num_workers: int

    def run(self, task: Callable[[int], Done], numbers: Sequence[int], shown: str, /) -> Generator[tuple[int, Done]]:
        """Have tasks run. A process that dies is replaced, and its task is gone on with."""
        left, failures = list(numbers), 0
        while left:
            try:
                with closing(self._run_once(task, left)) as made:
                    for number, done in made:
                        left.remove(number)
                        failures = 0
                        yield number, done
            except BrokenProcessPool as error:
                failures += 1
                if failures == _MOST_FAILURES:
                    raise CacheError(
                        f"processes that build {shown} died {failures} times in a row. If memory ran out, use"
                        " fewer workers; a script that builds with workers must do so below"
                        " if __name__ == '__main__':, because each of them loads it. What is built is kept"
                    ) from error

    def _run_once(self, task: Callable[[int], Done], numbers: Sequence[int]) -> Generator[tuple[int, Done]]:
        # Forked children would have our locks, and none of our threads.
        workers = min(self.num_workers, len(numbers))
        pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_start_worker, initargs=(task,))
        running: dict[Future[Any], int] = {}
        try:
            for number, ended in _run_side_by_side(
                numbers,
                2 * workers,
                lambda number: pool.submit(_run_in_worker, number),
                lambda futures: wait(futures, return_when=FIRST_COMPLETED).done,
                running,
            ):
                yield number, ended.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_task: Callable[[int], Any] | None = None  # of a worker process, which is sent it once


def _start_worker(task: Callable[[int], Any]) -> None:
    global _task
    end_with_parent()
    _task = task


def _run_in_worker(number: int) -> Any:
    assert _task is not None  # noqa: S101  the initializer has run
    return _task(number)


# --- Ray --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Runs so many tasks at a time with Ray, each where there is room; a task whose worker dies is run again."""

    num_workers: int = 4
    resources_per_worker: Mapping[str, float] | None = None
    use_gpu: bool = False
    object_store_memory: int | None = None

    def run(self, task: Callable[[int], Done], numbers: Sequence[int], _shown: str, /) -> Generator[tuple[int, Done]]:
        """Have tasks run: they are sent which shards to read, and read them where they run."""
        if not numbers:
            return
        ray = self.start()
        remote = ray.remote(_run_in_ray).options(**self.task_options())
        shared = ray.put(task)  # once for all tasks
        running: dict[Any, int] = {}
        try:
            for number, ended in _run_side_by_side(
                numbers,
                self.num_workers,
                lambda number: remote.remote(shared, number),
                lambda references: ray.wait(references, num_returns=1)[0],
                running,
            ):
                try:
                    done = ray.get(ended)
                except ray.exceptions.RayTaskError as error:
                    raise (error.cause if isinstance(error.cause, Exception) else error) from error
                yield number, done
        finally:
            for reference in running:
                ray.cancel(reference)

    def start(self) -> Any:
        """Connect to the cluster that the environment names, or start one here, unless that has been done."""
        ray = require("ray", extra="ray", purpose="spreading work with Ray")
        if not ray.is_initialized():
            own = {} if self.object_store_memory is None else {"object_store_memory": self.object_store_memory}
            try:
                ray.init(log_to_driver=False, include_dashboard=False, **own)
            except ValueError as error:
                raise ConfigError(f"Ray does not start with these settings: {error}") from error
        return ray

    def task_options(self) -> dict[str, Any]:
        """Return what a task needs, in the words of Ray."""
        needs = dict(self.resources_per_worker or {})
        options: dict[str, Any] = {
            "num_cpus": needs.pop("CPU", 1),
            "num_gpus": needs.pop("GPU", 1 if self.use_gpu else 0),
            "max_retries": _MOST_RETRIES,
            "retry_exceptions": [StoreError],
        }
        return {**options, "resources": needs} if needs else options


def _run_in_ray(task: Callable[[int], Any], number: int) -> Any:
    return task(number)


@dataclass(frozen=True, slots=True)
class DaskEngine:
    """Runs tasks with Dask: on the cluster of the current `distributed.Client`, or on one of so many processes here."""

    num_workers: int = 4

    def run(self, task: Callable[[int], Done], numbers: Sequence[int], _shown: str, /) -> Generator[tuple[int, Done]]:
        """Have tasks run; one whose worker dies is run again by another."""
        if not numbers:
            return
        distributed = require("distributed", extra="dask", purpose="spreading work with Dask")
        with ExitStack() as stack:
            try:
                client = distributed.get_client()
            except ValueError:
                own = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
                client = stack.enter_context(distributed.Client(n_workers=self.num_workers, **own))
            futures = client.map(task, numbers, pure=False, retries=_MOST_RETRIES)
            asked = dict(zip(futures, numbers, strict=True))
            stack.callback(client.cancel, futures)
            for future in distributed.as_completed(futures):
                yield asked[future], future.result()


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Runs tasks on the executors of the current Spark session, or on so many threads of one that is started here."""

    num_workers: int = 4

    def run(
        self,
        task: Callable[[int], Done],
        numbers: Sequence[int],
        shown: str,  # noqa: ARG002
    ) -> Generator[tuple[int, Done]]:
        """Have tasks run; Spark runs again those that failed, and tells when all are done."""
        if not numbers:
            return
        require("pyspark", extra="spark", purpose="spreading work with Spark")
        from pyspark.sql import SparkSession

        builder = SparkSession.builder
        session = SparkSession.getActiveSession() or builder.master(f"local[{self.num_workers}]").getOrCreate()
        spread = session.sparkContext.parallelize(numbers, len(numbers))
        yield from spread.map(lambda number: (number, task(number))).collect()


EngineName = Literal["local", "ray", "dask", "spark"]
ENGINES: dict[str, Callable[[int], Engine]] = {"ray": RayEngine, "dask": DaskEngine, "spark": SparkEngine}
