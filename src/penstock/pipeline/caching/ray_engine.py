"""Ray builds the parts of a cache: tasks are sent which shards to read, and read them where they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, StoreError
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from penstock.pipeline.caching.build import CacheBuild, PartDone
    from penstock.pipeline.config import RayConfig

_MOST_RETRIES = 3


class RayEngine:
    """Builds so many parts at a time, each as a task of Ray; a task whose worker dies is run again."""

    def __init__(self, config: RayConfig) -> None:
        self._config = config

    def build(self, job: CacheBuild, numbers: Sequence[int], *, waits: bool) -> Generator[tuple[int, PartDone | None]]:
        """Have parts built."""
        if not numbers:
            return
        ray = start_ray(self._config)
        task = ray.remote(_build_part).options(**task_options(self._config))
        shared = ray.put(job)  # once for all tasks
        waiting = list(reversed(numbers))
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self._config.num_workers:
                    number = waiting.pop()
                    running[task.remote(shared, number, waits)] = number
                (reference,), _ = ray.wait(list(running), num_returns=1)
                number = running.pop(reference)
                yield number, _result(ray, reference)
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
    """Say what a task needs, in the words of Ray."""
    needs = dict(config.resources_per_worker or {})
    options: dict[str, Any] = {
        "num_cpus": needs.pop("CPU", 1),
        "num_gpus": needs.pop("GPU", 1 if config.use_gpu else 0),
        "max_retries": _MOST_RETRIES,
        "retry_exceptions": [StoreError],
    }
    return {**options, "resources": needs} if needs else options


def _build_part(job: CacheBuild, number: int, waits: bool) -> PartDone | None:
    return job.build_part(number, waits=waits)


def _result(ray: Any, reference: Any) -> PartDone | None:
    try:
        done: PartDone | None = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, Exception) else error) from error
    return done
