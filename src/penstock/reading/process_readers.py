"""What a process reads a source with: its open shards, its counts, and the same again for each of its threads."""

from __future__ import annotations

import gc
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.reading.batch_reader import BatchReader
from penstock.reading.open_shards import OpenShards
from penstock.reading.read_counts import ReadCounts, total_counts
from penstock.reading.source import mean_sizes

if TYPE_CHECKING:
    from penstock.reading.blocks import BatchSchedule
    from penstock.reading.read_counts import TakenSamples
    from penstock.reading.source import Source
    from penstock.types import Int64Array
    from penstock.wire.share import Share


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
