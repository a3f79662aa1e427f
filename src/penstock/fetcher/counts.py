"""What the fetcher has done so far, for those who look in."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.wire.messages import StreamCounts

if TYPE_CHECKING:
    from pathlib import Path

GroupKey = tuple[int, int]  # client and its group
_MOST_REMEMBERED = 1 << 16  # shards of which it is known what has come


class Counts:
    """Totals since the start, by cause. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._caused: dict[GroupKey, dict[int, StreamCounts]] = {}
        self._came: dict[tuple[Path, str], int | None] = {}  # bytes of shards that came alone; None: the whole
        self._begin = time.monotonic()  # of a stretch of about two seconds, over which the rate is measured
        self._num_bytes = 0
        self._last_rate = 0.0

    def open(self, group: GroupKey) -> None:
        """Count what a group causes."""
        with self._lock:
            self._caused.setdefault(group, {})

    def close(self, group: GroupKey) -> None:
        """Forget what a group caused."""
        with self._lock:
            self._caused.pop(group, None)

    def add(self, what: str, number: int = 1) -> None:
        """Count something."""
        with self._lock:
            self._totals[what] += number

    def add_arrived(self, num_bytes: int) -> None:
        """Count bytes as they come, for the rate."""
        with self._lock:
            self._num_bytes += num_bytes
            self._roll()

    def add_ranges(self, shard: tuple[Path, str], num_bytes: int) -> None:
        """Count what was read of a shard alone: it comes twice if the whole follows, or came meanwhile."""
        with self._lock:
            before = self._came.pop(shard, 0)
            self._totals["bytes_twice"] += num_bytes if before is None else 0
            self._remember(shard, None if before is None else before + num_bytes)

    def add_download(self, cause: tuple[GroupKey, int] | None, num_bytes: int, shard: tuple[Path, str]) -> None:
        """Count an item that was fetched, for the stream that caused it too."""
        with self._lock:
            self._totals["bytes_twice"] += self._came.pop(shard, 0) or 0
            self._remember(shard, None)
            self._totals["downloads"] += 1
            self._totals["bytes"] += num_bytes
            if cause is not None and cause[0] in self._caused:
                counts = self._caused[cause[0]].setdefault(cause[1], StreamCounts())
                counts.downloads += 1
                counts.num_bytes += num_bytes

    def _remember(self, shard: tuple[Path, str], came: int | None) -> None:
        self._came[shard] = came
        if len(self._came) > _MOST_REMEMBERED:
            del self._came[next(iter(self._came))]

    def caused(self, group: GroupKey) -> dict[int, StreamCounts]:
        """Give the downloads and bytes that each stream of a group caused."""
        with self._lock:
            return {stream: replace(counts) for stream, counts in self._caused.get(group, {}).items()}

    def rate(self) -> float:
        """Give the bytes that come in a second."""
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
        """Give all totals."""
        with self._lock:
            return {name: self._totals[name] for name in ("downloads", "bytes", "bytes_twice", "retries", "errors")}
