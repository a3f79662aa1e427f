"""A line on the terminal while somebody waits long for data."""

from __future__ import annotations

import sys
import time
from typing import Any

from penstock.units import format_bytes

_SILENT_FOR_S = 2.0


class WaitLine:
    """Shows how a long wait goes, on a terminal only, and is gone when the wait is over."""

    def __init__(self, what: str | None = None) -> None:
        self._what = what
        self._begin = time.monotonic()
        self._num_shown = 0

    def show(self, progress: dict[str, Any]) -> None:
        """Take one report of the fetcher."""
        if time.monotonic() - self._begin < _SILENT_FOR_S or not progress or not _is_terminal():
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


def describe(progress: dict[str, Any], what: str | None = None) -> str:
    """Put a report into words; `what` is what the user knows the item by."""
    name, wanted = what or progress["name"], progress["wanted"]
    if progress["state"] == "parked":
        return f"waiting for room in the cache for {name}"
    if progress["state"] == "queued":
        return f"waiting to download {name}, {progress['position']} before it"
    done = f"{format_bytes(progress['bytes'])} of {format_bytes(progress['of'])}" if progress["of"] else ""
    return f"downloading {name} ({done}; {wanted} wanted), {format_bytes(progress['rate'])}/s"


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
