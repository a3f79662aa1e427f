"""A sign of life while data is waited for long: a line on the terminal, or a line in the log every few seconds."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from penstock.interrupts import WaitingFor
from penstock.status_line import StatusLine
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.wire.messages import Progress

_log = logging.getLogger("penstock.cache")
# How long it is silent at first: a line that is written over disturbs less than one in a log.
_TERMINAL_AFTER_S = 2.0
_LOG_AFTER_S = 3.0
_LOG_EVERY_S = 5.0
_LONGEST_REASON = 300


class LongWait:
    """One wait of one thread, however many things it waits for one after the other."""

    def __init__(self, line: StatusLine | None = None) -> None:
        self._line = line or StatusLine()
        self._since = time.monotonic()

    def show(self, what: str | None, progress: Progress) -> None:
        """Show a report of the fetcher, if it says something and the time has come; `what` is what the user waits for.

        Of a process's threads only one writes to the log at a time, and of a loader's workers only the first.
        """
        waited_s = time.monotonic() - self._since
        if not progress.name or _process.is_silent:
            return
        if self._line.is_terminal:
            if waited_s >= _TERMINAL_AFTER_S:
                self._line.show(describe(progress, what))
        elif waited_s >= _LOG_AFTER_S and _process.takes_turn():
            _log.warning("penstock has waited %.0f s for data so far: %s", waited_s, describe(progress, what))

    def end(self) -> None:
        """Erase the line, if there is one."""
        self._line.clear()


class _ProcessLines:
    """What the threads of a process share."""

    def __init__(self) -> None:
        self.is_silent = False
        self._next_at = 0.0

    def takes_turn(self) -> bool:
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + _LOG_EVERY_S
        return True


_process = _ProcessLines()
_mine = threading.local()  # the wait of this thread, if it is in one


def leave_lines_to_others() -> None:
    """Show nothing in this process from now on: another one waits for the same store, and says so."""
    _process.is_silent = True


@contextmanager
def single_progress_line() -> Iterator[LongWait]:
    """Count whatever this thread waits for within the block as one wait; a block within another belongs to that."""
    outer: LongWait | None = getattr(_mine, "wait", None)
    if outer is not None:
        yield outer
        return
    _mine.wait = wait = LongWait()
    try:
        yield wait
    finally:
        _mine.wait = None
        wait.end()


@contextmanager
def wait_line(what: str | None, described: str) -> Iterator[Callable[[Progress], None]]:
    """Yield what shows a report of the fetcher during a wait; an interrupt of it says what was waited for."""
    with single_progress_line() as wait, WaitingFor(described):
        yield partial(wait.show, what)


def describe(progress: Progress, what: str | None = None) -> str:
    """Put a report into words; `what` is what the user knows the item by."""
    name = what or progress.name
    if progress.state == "waiting_for_space":
        return f"waiting for room in the cache for {name}"
    if progress.state == "asked" and progress.reason:
        return f"asking the store for {name} again: {progress.reason:.{_LONGEST_REASON}}"
    if progress.state == "asked":
        return f"waiting for the store: {name}"
    if progress.state == "queued":
        return f"waiting to download {name}, after {progress.position} others"
    done, total = format_bytes(progress.num_bytes), progress.total_bytes
    size = f"{done} of {format_bytes(total)}" if total else f"{done} so far"
    if progress.reason:
        return f"asking the store for {name} again ({size}): {progress.reason:.{_LONGEST_REASON}}"
    rate = f"{format_bytes(progress.bytes_per_s)}/s"
    if progress.state == "reading":
        return f"reading {name} ({size}), {rate}"
    if progress.num_wanted <= 1:
        return f"downloading {name} ({size}), {rate}"
    return f"downloading {name} ({size}; {progress.num_wanted} files queued), {rate}"
