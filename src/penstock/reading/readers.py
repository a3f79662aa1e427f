"""What a process reads a source with, and what it counts; the same again for each of its threads."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from functools import cached_property
from operator import length_hint
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.reading.collected_rows import BatchReader
from penstock.reading.open_shards import OpenShards
from penstock.reading.source import SharesSpace, mean_sizes, row_reader_of
from penstock.thread_times import thread_times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.counters import Row
    from penstock.reading.schedule import BatchSchedule
    from penstock.reading.source import Source
    from penstock.types import Int64Array
    from penstock.wire.quota import OpenShardQuota


COUNTED = ("skipped", "reading_ns", "waiting_ns", "decoding_ns", "transforming_ns", "collating_ns")
COUNTED_BY_STREAM = ("samples", "bytes")


class ReadCounts:
    """Counts for one thread what it reads in passes, and what its time goes to; whole blocks at a time."""

    def __init__(self, row: Row, source: Source, first_ids: Int64Array) -> None:
        self._row, self._first_ids = row, first_ids
        self._sample_bytes = mean_sample_bytes(source, first_ids)
        self._transforming_ns = self._collating_ns = 0

    @contextmanager
    def reading(self, ids: Int64Array) -> Iterator[None]:
        """Count samples that are read, by stream, and the time it takes."""
        self.flush()
        thread_times.waiting_ns = thread_times.decoding_ns = 0
        begin = perf_counter_ns()
        try:
            yield
        finally:
            parts = {
                "waiting_ns": thread_times.waiting_ns,
                "decoding_ns": thread_times.decoding_ns,
                "transforming_ns": self._transforming_ns,
            }
            self._transforming_ns = 0
            self._row.add({"reading_ns": perf_counter_ns() - begin - sum(parts.values()), **parts})
        if len(ids):
            self._row.add(self._by_stream(ids))

    def _by_stream(self, ids: Int64Array) -> dict[str, int]:
        by_stream = [len(ids)]
        if len(self._sample_bytes) > 1:
            by_stream = np.bincount(np.searchsorted(self._first_ids, ids, side="right") - 1).tolist()
        counts: dict[str, int] = {}
        for stream, count in enumerate(by_stream):
            if count:
                counts[f"{stream}.samples"] = count
                counts[f"{stream}.bytes"] = round(count * self._sample_bytes[stream])
        return counts

    @contextmanager
    def transforming(self) -> Iterator[None]:
        """Count the time of functions of the user's within a block, but for what they wait for or have decoded."""
        begin, others = perf_counter_ns(), thread_times.waiting_ns + thread_times.decoding_ns
        try:
            yield
        finally:
            inside = thread_times.waiting_ns + thread_times.decoding_ns - others
            self._transforming_ns += perf_counter_ns() - begin - inside

    def collated(self, begun_ns: int) -> None:
        """Note the time in which a batch was cut out of a block, but for that of functions of the user's."""
        self._collating_ns += perf_counter_ns() - begun_ns

    def flush(self) -> None:
        """Count what was noted of the batches of a block."""
        if self._collating_ns:
            self._row.add({"collating_ns": self._collating_ns, "transforming_ns": self._transforming_ns})
            self._collating_ns = self._transforming_ns = 0

    def skip(self, num_samples: int) -> None:
        """Count samples that could not be read."""
        if num_samples:
            self._row.add({"skipped": num_samples})


def mean_sample_bytes(source: Source, first_ids: Int64Array) -> list[float]:
    """Return what a sample of each stream takes on average, as it is stored."""
    sizes = np.concatenate([[0], np.cumsum(source.sizes)])
    ends = sizes[np.searchsorted(source.spans.starts, first_ids)]
    means: list[float] = (np.diff(ends) / np.maximum(1, np.diff(first_ids))).tolist()
    return means


class DeliveredCount:
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
        """Return an iterator over samples, each of which counts when it is taken."""
        # No Python code runs between two samples: what is left of them tells how many were taken.
        self._handed_over += len(samples)
        self._left = iter(samples)
        return self._left

    def add(self, num_samples: int) -> None:
        """Count samples that are handed over together."""
        self._handed_over += num_samples


class ThreadReader:
    """Reads for one thread at a time. Nothing in it is carried over a fork."""

    def __init__(self, source: Source, counts: ReadCounts) -> None:
        self._source, self.counts = source, counts
        self.open_shards = OpenShards(source.open, sizes=source.sizes)
        self.batches = BatchReader(source.spans, self.open_shards, row_reader_of(source))
        if isinstance(source, SharesSpace):
            source.share_limit(self)

    def keep_to(self, share: OpenShardQuota) -> None:
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
    delivered: DeliveredCount


class ProcessReaders:
    """The reader of this process and those of its threads."""

    def __init__(self, source: Source, first_ids: Int64Array, row: Row, *, is_worker: bool) -> None:
        if is_worker:
            # What came from the parent is shared with it until somebody writes to it, as the collector does to all
            # that it looks at. In a worker none of that is garbage.
            gc.freeze()
        self._source, self._first_ids, self._row = source, first_ids, row
        self.main = self._make_reader()
        self._threads: list[ThreadReader] = []
        self._abandoned: list[ThreadReader] = []  # of threads that were left behind and may still read
        self._idle: list[ThreadReader] = []  # of nobody at the moment
        self.under_way: PassUnderWay | None = None
        # Samples that were read with others and that will be asked for one by one next.
        self.at_hand: dict[int, Any] = {}

    def of_threads(self, count: int) -> list[ThreadReader]:
        """Return each of so many threads a reader of its own, which it finds as it left it in the pass before."""
        while len(self._threads) < count:
            self._threads.append(self._make_reader())
        return self._threads[:count]

    @contextmanager
    def borrow_reader(self) -> Iterator[ThreadReader]:
        """Lend a reader to whoever reads something now, in any thread; who comes next finds it as it was left."""
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = self._make_reader()
        try:
            yield reader
        finally:
            self._idle.append(reader)

    def _make_reader(self) -> ThreadReader:
        return ThreadReader(self._source, ReadCounts(self._row, self._source, self._first_ids))

    def abandon_threads(self) -> None:
        """Have the threads that come next share nothing with those of now."""
        self._abandoned += self._threads
        self._threads = []

    def close(self) -> None:
        """Close the shards that are open; whoever reads on opens them again."""
        for reader in [self.main, *self._threads, *self._abandoned, *self._idle]:
            reader.open_shards.close()
