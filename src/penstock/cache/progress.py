"""A line on the terminal while somebody waits long for data."""

from __future__ import annotations

from typing import Any

from penstock.status_line import StatusLine
from penstock.units import format_bytes

_SILENT_FOR_S = 2.0


class WaitLine:
    """Shows how a long wait goes, on a terminal only, and is gone when the wait is over."""

    def __init__(self, what: str | None = None) -> None:
        self._what = what
        self._line = StatusLine(silent_for_s=_SILENT_FOR_S)

    def show(self, progress: dict[str, Any]) -> None:
        """Take one report of the fetcher."""
        if progress and self._line.is_due() and self._line.is_terminal:
            self._line.show(describe(progress, self._what))

    def clear(self) -> None:
        """Erase the line."""
        self._line.clear()


def describe(progress: dict[str, Any], what: str | None = None) -> str:
    """Put a report into words; `what` is what the user knows the item by."""
    name, wanted = what or progress["name"], progress["wanted"]
    if progress["state"] == "parked":
        return f"waiting for room in the cache for {name}"
    if progress["state"] == "queued":
        return f"waiting to download {name}, {progress['position']} before it"
    done = f"{format_bytes(progress['bytes'])} of {format_bytes(progress['of'])}" if progress["of"] else ""
    return f"downloading {name} ({done}; {wanted} wanted), {format_bytes(progress['rate'])}/s"
