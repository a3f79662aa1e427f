"""What a process has read and handed out, and how long that took."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import length_hint
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.types import Int64Array


@dataclass(slots=True)
class ReadCounts:
    """Counts of one process, or thread, since the dataset was opened in it."""

    first_ids: Int64Array  # of each stream, and the end of the last
    samples: int = 0
    samples_per_stream: list[int] = field(default_factory=list)  # empty as long as there are none
    skipped: int = 0
    seconds_reading: float = 0.0

    @contextmanager
    def reading(self, ids: Int64Array) -> Iterator[None]:
        """Count samples that are read, by stream, and the time it takes."""
        with self.timed():
            yield
        streams = np.searchsorted(self.first_ids, ids, side="right") - 1
        counts = np.bincount(streams, minlength=len(self.first_ids) - 1)
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


def total_counts(parts: Sequence[ReadCounts]) -> ReadCounts:
    """Add up what several threads have counted."""
    return ReadCounts(
        first_ids=parts[0].first_ids,
        samples=sum(part.samples for part in parts),
        samples_per_stream=[
            sum(counts) for counts in zip(*(part.samples_per_stream for part in parts if part.samples), strict=True)
        ],
        skipped=sum(part.skipped for part in parts),
        seconds_reading=sum(part.seconds_reading for part in parts),
    )


class TakenSamples:
    """Counts the samples of a pass that were taken: those handed over, but for what is left of the last piece."""

    __slots__ = ("_handed_over", "_left")

    def __init__(self, before: int = 0) -> None:
        self._handed_over = before
        self._left: Iterator[Any] = iter(())

    @property
    def count(self) -> int:
        """The samples that were taken since the pass began."""
        return self._handed_over - length_hint(self._left)

    def hand_over(self, samples: list[Any]) -> Iterator[Any]:
        """Give an iterator over samples, each of which counts when it is taken."""
        # No Python code runs between two samples: what is left of them tells how many were taken.
        self._handed_over += len(samples)
        self._left = iter(samples)
        return self._left

    def add(self, num_samples: int) -> None:
        """Count samples that are handed over together."""
        self._handed_over += num_samples
