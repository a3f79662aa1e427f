"""What a process reads a source with, and what it counts; the same again for each of its threads."""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from operator import length_hint
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.reading.batch_reader import BatchReader
from penstock.reading.open_shards import OpenShards
from penstock.reading.source import mean_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.reading.schedule import BatchSchedule
    from penstock.reading.source import Source
    from penstock.types import Int64Array
    from penstock.wire.share import Share


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


class ThreadReader:
    """Reads for one thread at a time. Nothing in it is carried over a fork."""

    def __init__(self, source: Source, first_ids: Int64Array) -> None:
        self._source = source
        self.open_shards = OpenShards(source.open)
        self.batches = BatchReader(source.spans, self.open_shards, source.row_reader())
        self.counts = ReadCounts(first_ids)
        source.share_limit(self)

    def keep_to(self, share: Share) -> None:
        """Keep no more shards open than fits into this reader's share of the cache."""
        max_open = None
        if share.num_bytes is not None:
            max_open = max(1, int(share.num_bytes / max(1.0, self._mean_shard_bytes)))
        self.open_shards.keep_to(max_open, keeps_none=share.is_tight)

    @cached_property
    def _mean_shard_bytes(self) -> float:
        return mean_sizes(self._source)[1]


class PassUnderWay(NamedTuple):
    """The pass that this process reads itself, and how far it has come."""

    schedule: BatchSchedule
    taken: TakenSamples


class ProcessReaders:
    """The reader of this process and those of its threads."""

    def __init__(self, source: Source, first_ids: Int64Array, *, is_worker: bool) -> None:
        if is_worker:
            # What came from the parent is shared with it until somebody writes to it, as the collector does to all
            # that it looks at. In a worker none of that is garbage.
            gc.freeze()
        self._source, self._first_ids = source, first_ids
        self.main = ThreadReader(source, first_ids)
        self._threads: list[ThreadReader] = []
        self._abandoned: list[ThreadReader] = []  # of threads that were left behind and may still read
        self.under_way: PassUnderWay | None = None
        # Samples that were read with others and that will be asked for one by one next.
        self.at_hand: dict[int, Any] = {}

    def of_threads(self, count: int) -> list[ThreadReader]:
        """Give each of so many threads a reader of its own, which it finds as it left it in the pass before."""
        while len(self._threads) < count:
            self._threads.append(ThreadReader(self._source, self._first_ids))
        return self._threads[:count]

    def abandon_threads(self) -> None:
        """Have the threads that come next share nothing with those of now."""
        self._abandoned += self._threads
        self._threads = []

    @property
    def _all(self) -> list[ThreadReader]:
        return [self.main, *self._threads, *self._abandoned]

    def describe(self) -> dict[str, Any]:
        """Give what was counted, in all threads."""
        return total_counts([reader.counts for reader in self._all]).describe()

    def close(self) -> None:
        """Close the shards that are open; whoever reads on opens them again."""
        for reader in self._all:
            reader.open_shards.close()
