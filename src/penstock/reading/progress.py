"""What a process has handed out, and what it waited for."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.types import Int64Array


@dataclass(slots=True)
class Progress:
    """Counts of one process, or thread, since the dataset was opened in it."""

    samples: int = 0
    samples_per_stream: list[int] = field(default_factory=list)  # empty as long as there are none
    skipped: int = 0
    seconds_reading: float = 0.0

    @contextmanager
    def reading(self, ids: Int64Array, first_ids: Int64Array) -> Iterator[None]:
        """Count samples that are read, by stream, and the time it takes."""
        with self.timed():
            yield
        streams = np.searchsorted(first_ids, ids, side="right") - 1
        counts = np.bincount(streams, minlength=len(first_ids) - 1)
        self.samples_per_stream = (np.array(self.samples_per_stream or [0] * len(counts)) + counts).tolist()
        self.samples += len(ids)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time of a part of reading."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds_reading += time.perf_counter() - begin

    def describe(self) -> dict[str, Any]:
        """Give the counts as plain values."""
        return {
            "samples": self.samples,
            "samples_per_stream": list(self.samples_per_stream),
            "skipped": self.skipped,
            "seconds_reading": self.seconds_reading,
        }


def total_progress(parts: Sequence[Progress]) -> Progress:
    """Add up what several threads have counted."""
    return Progress(
        samples=sum(part.samples for part in parts),
        samples_per_stream=[
            sum(counts) for counts in zip(*(part.samples_per_stream for part in parts if part.samples), strict=True)
        ],
        skipped=sum(part.skipped for part in parts),
        seconds_reading=sum(part.seconds_reading for part in parts),
    )
