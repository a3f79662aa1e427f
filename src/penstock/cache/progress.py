"""A line on the terminal while somebody waits long for data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.status_line import StatusLine
from penstock.units import format_bytes

if TYPE_CHECKING:
    from penstock.wire.messages import Progress

_SILENT_FOR_S = 2.0


class WaitLine:
    """Shows how a long wait goes, on a terminal only, and is gone when the wait is over."""

    def __init__(self, what: str | None = None) -> None:
        self._what = what
        self._line = StatusLine(silent_for_s=_SILENT_FOR_S)

    def show(self, progress: Progress) -> None:
        """Take one report of the fetcher."""
        if progress.name and self._line.is_due() and self._line.is_terminal:
            self._line.show(describe(progress, self._what))

    def clear(self) -> None:
        """Erase the line."""
        self._line.clear()


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
