"""A line on the terminal that is written over in place, and what shows on it how far a piece of work is."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

from penstock.units import format_bytes

_INTERVAL_S = 0.2
_ERASE_REST = "\x1b[K"


class StatusLine:
    """Shows what is going on, a few times a second; on standard error unless told otherwise."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._due_at = time.monotonic() + _INTERVAL_S
        self._is_shown = False

    @property
    def is_terminal(self) -> bool:
        """Whether a user can see it; a process may have no standard error at all."""
        return self._stream is not None and self._stream.isatty()

    def is_due(self) -> bool:
        """Return whether the last text has been there for a moment: what is asked for each sample must cost little."""
        return time.monotonic() >= self._due_at

    def show(self, text: str, end: str = "") -> None:
        """Write a text over the one before; `end="\\n"` leaves it there."""
        self._due_at = time.monotonic() + _INTERVAL_S
        self._is_shown = not end
        if not end:
            text = text[: self._width()]  # what wraps around cannot be written over
        self._stream.write(f"\r{text}{_ERASE_REST}{end}")
        self._stream.flush()

    def _width(self) -> int | None:
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):  # not a terminal
            return None
        return columns - 1 if columns > 1 else None  # some say 0, and mean that they do not know

    def clear(self) -> None:
        """Erase the text, if there is one."""
        if self._is_shown:
            self.show("")
            self._is_shown = False


class Bar:
    """Counts how far a piece of work is; shows nothing of it."""

    def __init__(self) -> None:
        self.count = self.num_bytes = 0
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it goes on."""
        return time.monotonic() - self._began

    def add(self, count: int, num_bytes: int = 0) -> None:
        """Show that so much more is done."""
        self.update(self.count + count, self.num_bytes + num_bytes)

    def update(self, count: int, num_bytes: int) -> None:
        """Show that so much is done."""
        self.count, self.num_bytes = count, num_bytes
        self.show()

    def show(self) -> None:
        """Show how far it is."""

    def close(self, *, is_whole: bool = True) -> None:
        """Show the end, and leave it there."""


class ProgressBar(Bar):
    """A line with samples, bytes and rates."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        super().__init__()
        self._label, self._line = label, StatusLine(stream)

    def show(self) -> None:
        """Show the sums, unless they were shown a moment ago."""
        if self._line.is_due():
            self._line.show(f"{self._label}: {progress_line(self.count, self.num_bytes, self.seconds)}")

    def close(self, *, is_whole: bool = True) -> None:  # noqa: ARG002
        """Show the sums, and end the line."""
        self._line.show(f"{self._label}: {progress_line(self.count, self.num_bytes, self.seconds)}", "\n")


def progress_line(num_samples: int, num_bytes: int, elapsed_s: float) -> str:
    """Return samples, bytes and rates in words."""
    rate = num_samples / elapsed_s if elapsed_s > 0 else 0.0
    speed = num_bytes / elapsed_s if elapsed_s > 0 else 0.0
    return f"{num_samples:,} samples, {format_bytes(num_bytes)}, {rate:,.0f} samples/s, {format_bytes(speed)}/s"
