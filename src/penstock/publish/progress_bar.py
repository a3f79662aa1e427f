"""How far a writer is, on the terminal: samples, bytes and rates."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.status_line import StatusLine
from penstock.units import format_bytes

if TYPE_CHECKING:
    from typing import TextIO


class ProgressBar:
    """Shows how far a writer is."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = label
        self._line = StatusLine(stream)
        self._started = time.monotonic()

    def update(self, num_samples: int, num_bytes: int) -> None:
        """Show the state, unless it was shown a moment ago."""
        if self._line.is_due():
            self._show(num_samples, num_bytes)

    def close(self, num_samples: int, num_bytes: int) -> None:
        """Show the final state and end the line."""
        self._show(num_samples, num_bytes, end="\n")

    def _show(self, num_samples: int, num_bytes: int, end: str = "") -> None:
        words = progress_line(num_samples, num_bytes, time.monotonic() - self._started)
        self._line.show(f"{self._label}: {words}", end)


def progress_line(num_samples: int, num_bytes: int, elapsed_s: float) -> str:
    """Return samples, bytes and rates in words."""
    rate = num_samples / elapsed_s if elapsed_s > 0 else 0.0
    speed = num_bytes / elapsed_s if elapsed_s > 0 else 0.0
    return f"{num_samples:,} samples, {format_bytes(num_bytes)}, {rate:,.0f} samples/s, {format_bytes(speed)}/s"
