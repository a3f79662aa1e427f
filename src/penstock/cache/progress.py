"""A line on the terminal while somebody waits long for data."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from penstock.units import format_bytes

if TYPE_CHECKING:
    from penstock.wire.messages import Progress

_SILENT_FOR_S = 2.0


class WaitLine:
    """Shows how a long wait goes, on a terminal only, and is gone when the wait is over."""

    def __init__(self, what: str | None = None) -> None:
        self._what = what
        self._begin = time.monotonic()
        self._num_shown = 0

    def show(self, progress: Progress) -> None:
        """Take one report of the fetcher."""
        if time.monotonic() - self._begin < _SILENT_FOR_S or not progress.name or not _is_terminal():
            return
        text = describe(progress, self._what)
        sys.stderr.write("\r" + text.ljust(self._num_shown))
        sys.stderr.flush()
        self._num_shown = len(text)

    def clear(self) -> None:
        """Erase the line."""
        if self._num_shown:
            sys.stderr.write("\r" + " " * self._num_shown + "\r")
            sys.stderr.flush()
            self._num_shown = 0


def describe(progress: Progress, what: str | None = None) -> str:
    """Put a report into words; `what` is what the user knows the item by."""
    name = what or progress.name
    if progress.state == "parked":
        return f"waiting for room in the cache for {name}"
    if progress.state == "queued":
        return f"waiting to download {name}, {progress.position} before it"
    total = progress.total_bytes
    done = f"{format_bytes(progress.num_bytes)} of {format_bytes(total)}" if total else ""
    return f"downloading {name} ({done}; {progress.num_wanted} wanted), {format_bytes(progress.bytes_per_s)}/s"


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
