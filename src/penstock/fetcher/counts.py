"""What the fetcher has done so far, for those who look in."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from penstock.wire.messages import StreamCounts

if TYPE_CHECKING:
    from collections.abc import Callable

GroupKey = tuple[int, int]  # client and its group


class Counts:
    """Totals since the start, by cause. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._on_caused: dict[GroupKey, Callable[[int, StreamCounts], None]] = {}
        self._brought: set[int] = set()
        self._begin = time.monotonic()  # of a stretch of about two seconds, over which the rate is measured
        self._num_bytes = 0
        self._last_rate = 0.0

    def open(self, group: GroupKey, on_caused: Callable[[int, StreamCounts], None]) -> None:
        """Tell a group from now on, by stream, what it causes; who is told must not wait for anything."""
        with self._lock:
            self._on_caused[group] = on_caused

    def close(self, group: GroupKey) -> None:
        """Forget a group."""
        with self._lock:
            self._on_caused.pop(group, None)

    def add(self, what: str, number: int = 1) -> None:
        """Count something."""
        with self._lock:
            self._totals[what] += number

    def add_arrived(self, num_bytes: int) -> None:
        """Count bytes as they come, for the rate."""
        with self._lock:
            self._num_bytes += num_bytes
            self._roll()

    def add_download(self, cause: tuple[GroupKey, int] | None, num_bytes: int, item: tuple[str, str] | None) -> None:
        """Count what was fetched, also for the stream that caused it.

        `item` names what may be evicted: if it came before, it was.
        """
        key = hash(item)
        with self._lock:
            self._totals["downloads"] += 1
            self._totals["bytes"] += num_bytes
            is_again = item is not None and key in self._brought
            if item is not None:
                self._brought.add(key)
            if cause is not None and cause[0] in self._on_caused:
                self._on_caused[cause[0]](cause[1], StreamCounts(1, num_bytes, int(is_again)))

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
            return {name: self._totals[name] for name in ("downloads", "bytes", "retries", "errors")}
