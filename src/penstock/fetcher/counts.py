"""What the fetcher has done so far, for those who look in."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from penstock.wire.messages import GroupUpdate, StreamCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.wire.item import Cause, GroupKey, ItemKey

_MOST_REMEMBERED = 1 << 16  # shards of which it is known what has come


class FetcherCounts:
    """Totals since the start, by cause. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        # What hears of all that the streams of a group cause, and must not wait for anything.
        self.listeners: dict[GroupKey, Callable[[GroupUpdate], None]] = {}
        self._came: dict[ItemKey, int | None] = {}  # bytes of shards that came alone; None: the whole
        self._begin = time.monotonic()  # of a stretch of about two seconds, over which the rate is measured
        self._num_bytes = 0
        self._last_rate = 0.0

    def add(self, what: str, number: int = 1) -> None:
        """Count something."""
        with self._lock:
            self._totals[what] += number

    def add_arrived(self, num_bytes: int) -> None:
        """Count bytes as they come, for the rate."""
        with self._lock:
            self._num_bytes += num_bytes
            self._roll()

    def add_ranges(self, shard: ItemKey, num_bytes: int) -> None:
        """Count what was read of a shard alone: it comes twice if the whole follows, or came meanwhile."""
        with self._lock:
            before = self._came.pop(shard, 0)
            self._totals["bytes_twice"] += num_bytes if before is None else 0
            self._remember(shard, None if before is None else before + num_bytes)

    def has_come(self, shard: ItemKey) -> bool:
        """Return True if the whole of a shard has come before."""
        return self._came.get(shard, 0) is None

    def add_download(self, cause: Cause | None, num_bytes: int, shard: ItemKey, *, is_again: bool = False) -> None:
        """Count an item that was fetched, also for the stream that caused it; `is_again`: after it was evicted."""
        with self._lock:
            before = self._came.pop(shard, 0)
            self._totals["bytes_twice"] += before or 0
            self._remember(shard, None)
            self._totals["downloads"] += 1
            self._totals["bytes"] += num_bytes
            on_update = None if cause is None else self.listeners.get(cause[0])
            if cause is not None and on_update is not None:
                on_update(GroupUpdate(cause[0][1], counts={cause[1]: StreamCounts(1, num_bytes, int(is_again))}))

    def _remember(self, shard: ItemKey, came: int | None) -> None:
        self._came[shard] = came
        if len(self._came) > _MOST_REMEMBERED:
            del self._came[next(iter(self._came))]

    def rate(self) -> float:
        """Return the bytes that come in a second."""
        with self._lock:
            passed_s = self._roll()
            return self._last_rate if passed_s < 0.5 else self._num_bytes / passed_s

    def _roll(self) -> float:
        """Begin another stretch if it is time to; give how long this one has lasted."""
        passed_s = time.monotonic() - self._begin
        if passed_s < 2.0:
            return passed_s
        self._last_rate = self._num_bytes / passed_s
        self._begin, self._num_bytes = time.monotonic(), 0
        return 0.0

    def totals(self) -> dict[str, int]:
        """Return all totals."""
        with self._lock:
            return {name: self._totals[name] for name in ("downloads", "bytes", "bytes_twice", "retries", "errors")}
