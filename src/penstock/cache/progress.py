"""A line on the terminal while somebody waits long for data."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.status_line import StatusLine
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.wire.messages import Progress


@contextmanager
def wait_line(what: str | None) -> Iterator[Callable[[Progress], None]]:
    """Give what shows a report of the fetcher during a long wait, on a terminal only, until the wait is over."""
    line = StatusLine(silent_for_s=2.0)

    def show(progress: Progress) -> None:
        if progress.name and line.is_due() and line.is_terminal:
            line.show(describe(progress, what))

    try:
        yield show
    finally:
        line.clear()


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
