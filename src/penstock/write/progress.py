"""A line on the terminal that says how far a writer is."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from penstock.units import format_bytes

_INTERVAL_S = 0.2


def progress_line(num_samples: int, num_bytes: int, elapsed_s: float) -> str:
    """Say samples, bytes and rates."""
    rate = num_samples / elapsed_s if elapsed_s > 0 else 0.0
    speed = num_bytes / elapsed_s if elapsed_s > 0 else 0.0
    return f"{num_samples:,} samples, {format_bytes(num_bytes)}, {rate:,.0f} samples/s, {format_bytes(speed)}/s"


class ProgressBar:
    """Shows a line that is written over in place, a few times a second."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = label
        self._stream = stream or sys.stderr
        self._started = time.monotonic()
        self._next = self._started + _INTERVAL_S

    def update(self, num_samples: int, num_bytes: int) -> None:
        """Show the state, unless it was shown a moment ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _INTERVAL_S
            self._show(num_samples, num_bytes, now, end="")

    def close(self, num_samples: int, num_bytes: int) -> None:
        """Show the final state and end the line."""
        self._show(num_samples, num_bytes, time.monotonic(), end="\n")

    def _show(self, num_samples: int, num_bytes: int, now: float, end: str) -> None:
        line = progress_line(num_samples, num_bytes, now - self._started)
        self._stream.write(f"\r{self._label}: {line}\x1b[K{end}")
        self._stream.flush()
