"""A few threads that store shards while the caller goes on encoding."""

from __future__ import annotations

import os
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, PenstockError, StoreError

if TYPE_CHECKING:
    from penstock.index.model import ShardInfo
    from penstock.write.pending_shard import PendingShard


class ShardQueue:
    """Stores shards in any order and describes them in the order of submission.

    At most one more than there are threads is held, so memory stays at a few shards. The first failure ends it all.
    """

    def __init__(self, max_workers: int | None) -> None:
        if max_workers is not None and max_workers < 1:
            raise ConfigError(f"max_workers={max_workers} is less than one thread")
        self._num_threads = max_workers or min(4, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="penstock-writer")
        self._submitted: list[tuple[str, Future[ShardInfo]]] = []
        self._running: set[Future[ShardInfo]] = set()
        self.has_failed = False

    def submit(self, shard: PendingShard) -> None:
        """Hand over a shard, waiting while too many are on their way."""
        while len(self._running) > self._num_threads and not self.has_failed:
            _, self._running = wait(self._running, return_when=FIRST_COMPLETED)
        self.raise_failure()
        future = self._pool.submit(shard.store)
        future.add_done_callback(self._notice)
        self._running.add(future)
        self._submitted.append((shard.names[0], future))

    def results(self) -> list[ShardInfo]:
        """Wait for all shards and give their descriptions."""
        wait(self._running)
        self.raise_failure()
        return [future.result() for _, future in self._submitted]

    def raise_failure(self) -> None:
        """Raise the first failure, if there is one, with the name of its shard, once nothing runs any more."""
        if not self.has_failed:
            return
        self.close()
        for name, future in self._submitted:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, PenstockError):
                raise type(error)(f"shard {name} could not be written: {error.message}", shard=name) from error
            if error is not None:
                raise StoreError(f"shard {name} could not be written: {error!r}", shard=name) from error

    def written(self) -> list[ShardInfo]:
        """Give the shards that are stored by now."""
        done = [future for _, future in self._submitted if future.done() and not future.cancelled()]
        return [future.result() for future in done if future.exception() is None]

    def close(self) -> None:
        """Let those that are being stored end, drop the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _notice(self, future: Future[ShardInfo]) -> None:
        if not future.cancelled() and future.exception() is not None:
            self.has_failed = True
