"""A line on the terminal that is written over in place: the one way in which progress is shown."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

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
