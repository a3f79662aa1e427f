"""The shards of later batches are on their way while earlier ones are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.reading.blocks import BatchSchedule
    from penstock.reading.source import Source

# Shards that are fetched before they are needed, by default.
_AHEAD_BYTES = 512 << 20
_MIN_BATCHES_AHEAD = 8


class Prefetcher:
    """Tells the source, every now and then, which shards the rank's next steps need."""

    def __init__(self, schedule: BatchSchedule, source: Source, batches_ahead: int) -> None:
        self._schedule = schedule
        self._source = source
        self._batches_ahead = max(1, batches_ahead)
        self._next_step = -1

    def look_ahead(self, step: int) -> None:
        """Look ahead from a step of the rank, if the last look is not recent."""
        if step < self._next_step:
            return
        self._next_step = step + max(1, self._batches_ahead // 4)
        schedule = self._schedule
        shards, first_steps = schedule.plan.expected_shards(
            schedule.at, step, self._batches_ahead, schedule.seat, schedule.global_batch_size
        )
        self._source.expect(shards, first_steps)


def max_open_shards(*, limit_bytes: int | None, shard_bytes: float, num_readers: int) -> int | None:
    """Say how many shards each of the readers of a node may hold open: together, half of what the cache may hold.

    Closing one does not remove it: it stays for as long as the plan needs it, and opening it again is quick.
    """
    return None if limit_bytes is None else max(1, int(limit_bytes / (2 * num_readers * max(1.0, shard_bytes))))


def batches_ahead(
    *, predownload: int | None, batch_size: int, sample_bytes: float, limit_bytes: int | None, ranks_per_node: int
) -> int:
    """Choose how far to look ahead: as the user says in samples, else by bytes, and within the limit of the cache."""
    if predownload is not None:
        return max(1, -(-predownload // batch_size))
    num_bytes = _AHEAD_BYTES if limit_bytes is None else min(_AHEAD_BYTES, limit_bytes // (4 * ranks_per_node))
    return max(_MIN_BATCHES_AHEAD, int(num_bytes / max(1.0, sample_bytes * batch_size)))
