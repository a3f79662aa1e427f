"""A pass under way in one process: ids in blocks, samples or columns out."""

from __future__ import annotations

import gc
import os
from functools import cached_property
from operator import length_hint
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from penstock.data.seat import is_worker
from penstock.errors import ConfigError, StoreError, StoreTimeoutError
from penstock.reading.batch_reader import Feed
from penstock.reading.open_shards import OpenShards, max_mapped
from penstock.reading.prefetch import portion_size
from penstock.reading.progress import Progress, total_progress
from penstock.reading.ranged import RangedRows
from penstock.reading.skip import SKIPPED, Gap, fill_gaps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.data.dataset import StreamingDataset
    from penstock.reading.collecting import ColumnCollector
    from penstock.reading.prefetch import Course, Outlook
    from penstock.reading.shard_table import ShardTable
    from penstock.types import Columns, Int64Array
    from penstock.wire.share import Share

T = TypeVar("T")


class Here:
    """The part of a dataset that stays in its process, or thread. Nothing in it is carried over a fork."""

    def __init__(self, table: ShardTable) -> None:
        if is_worker():
            # What came from the parent is shared with it until somebody writes to it, as the collector does to all
            # that it looks at. In a worker none of that is garbage.
            gc.freeze()
        self._table = table
        self._threads: list[Here] = []
        self._abandoned: list[Here] = []  # of threads that were left behind and may still read
        self.pid = os.getpid()
        self.open_shards = OpenShards(table.open)
        self.feed = Feed(table.spans, self.open_shards, RangedRows(table) if table.needs_cache else None)
        self.progress = Progress()
        self.tour: Tour | None = None
        # Samples that were read with others and that `get_item` will be asked for next.
        self.at_hand: dict[int, Any] = {}
        if table.needs_cache:
            table.cache.keep(self)

    def keep_to(self, share: Share) -> None:
        """Keep no more shards open than fits into this part's share of the cache."""
        max_open = None
        if share.num_bytes is not None:
            max_open = max(1, int(share.num_bytes / max(1.0, self._mean_shard_bytes)))
        self.open_shards.keep_to(max_open, keeps_none=share.is_tight)

    @cached_property
    def _mean_shard_bytes(self) -> float:
        sizes = self._table.raw_bytes()
        return float(sizes.mean()) if len(sizes) else 0.0

    def of_threads(self, count: int) -> list[Here]:
        """Give each of so many threads a part of its own, which it finds as it left it in the pass before."""
        while len(self._threads) < count:
            self._threads.append(Here(self._table))
        return self._threads[:count]

    def abandon_threads(self) -> None:
        """Have the threads that come next share nothing with those of now."""
        self._abandoned += self._threads
        self._threads = []

    @property
    def _all(self) -> list[Here]:
        return [self, *self._threads, *self._abandoned]

    def describe(self) -> dict[str, Any]:
        """Give what was counted, in all threads."""
        return total_progress([part.progress for part in self._all]).describe()

    def close(self) -> None:
        """Close the shards that are open; whoever reads on opens them again."""
        for part in self._all:
            part.open_shards.close()


class Tour:
    """One worker's way through a pass."""

    def __init__(
        self, dataset: StreamingDataset, course: Course, here: Here, *, yielded: int, outlook: Outlook | None
    ) -> None:
        self._dataset, self._here, self._outlook = dataset, here, outlook
        here.open_shards.max_open = dataset.max_open_shards(course)
        here.open_shards.max_mapped = max_mapped(
            sample_bytes=dataset.mean_sample_bytes, shard_bytes=dataset.mean_shard_bytes
        )
        self.course = course
        self._has_begun = False
        self._step = 0
        self._handed_over = yielded
        self._left: Iterator[Any] = iter(())

    @property
    def yielded(self) -> int:
        """Count the samples that were taken since the pass began."""
        return self._handed_over - length_hint(self._left)

    def pieces(self) -> Iterator[Iterator[Any]]:
        """Give what the dataset gives, samples or batches by column, in pieces to be laid end to end."""
        return iter([self.columns()]) if self._dataset.columnar else self._samples()

    def _samples(self) -> Iterator[Iterator[Any]]:
        # No Python code runs between two samples of a block: what is left of it tells how many were taken.
        for block, skipped in self._blocks(by_column=False):
            for portion, passed in self._portions(block, skipped):
                samples = self._read(portion)[passed:]
                self._left = iter(samples)
                self._handed_over += len(samples)
                yield self._left

    def _portions(self, block: list[Int64Array], skipped: int) -> Iterator[tuple[list[Int64Array], int]]:
        """Cut a block of large samples into portions, each with the number of its samples that were yielded before."""
        dataset = self._dataset
        most = portion_size(dataset.mean_sample_bytes)
        # What stands in for bad samples is of the same batch, and a first one from far away is asked for as a whole.
        is_whole = dataset.on_error == "skip" or (dataset.table.needs_cache and not self._has_begun)
        if most is None or is_whole:
            yield block, skipped
            return
        ids = np.concatenate(block)[skipped:]
        for begin in range(0, len(ids), most):
            yield [ids[begin : begin + most]], 0

    def columns(self) -> Iterator[Columns]:
        """Give batch after batch, by column."""
        dataset = self._dataset
        if dataset.is_overridden:
            raise ConfigError(
                "columnar=True reads whole columns and would not call your get_item: leave one of the two out"
            )
        for block, skipped in self._blocks(by_column=True):
            sizes = [len(ids) for ids in block]
            collected = self._collect(block)
            for size, end in zip(sizes, np.cumsum(sizes).tolist(), strict=True):
                begin, skipped = end - size + min(skipped, size), max(0, skipped - size)
                if begin < end:
                    self._handed_over += end - begin
                    with self._here.progress.timed():
                        columns = collected.columns(begin, end)
                    yield columns

    def _blocks(self, *, by_column: bool) -> Iterator[tuple[list[Int64Array], int]]:
        """Give the ids of several batches at a time, and how many samples of the first one were yielded before."""
        course, dataset = self.course, self._dataset
        turn, skipped = divmod(self.yielded, course.batch_size)
        for block in course.blocks(turn, dataset.mean_sample_bytes, dataset.table, by_column=by_column):
            self._step = course.seat.step_of(turn)
            turn += len(block)
            yield block, skipped
            skipped = 0

    def _early(
        self,
        read: Callable[[Int64Array], T],
        read_some: Callable[[Int64Array, Callable[[], None]], T],
        ids: Int64Array,
    ) -> T:
        """Read a block; the first one of a pass, which the training loop stands still for, does not wait for shards.

        The shards of later batches are asked for after it: they would take the line from it.
        """
        is_first, self._has_begun = not self._has_begun, True
        if is_first and self.course.seat.worker == 0:
            try:
                return read_some(ids, self._look_ahead)
            except StoreTimeoutError:  # all patience is used up: trying whole shards would take as long again
                raise
            except StoreError:  # reading whole shards says what is wrong, or finds that nothing is
                pass
        self._look_ahead()
        return read(ids)

    def _look_ahead(self) -> None:
        if self._outlook is not None:
            self._outlook.look(self._step)

    def _read(self, block: list[Int64Array]) -> list[Any]:
        here, dataset, ids = self._here, self._dataset, np.concatenate(block)
        with here.progress.reading(ids, dataset.table.first_ids):
            try:
                samples: list[Any] = self._early(here.feed.read, here.feed.read_some, ids)
            except SKIPPED:
                if dataset.on_error == "raise":
                    raise
                samples = here.feed.read_around(ids)
            if dataset.is_overridden:
                samples = self._get_items(ids.tolist(), samples)
            if dataset.on_error == "skip":
                samples = [sample for _, batch in self._filled(block, samples) for sample in batch]
            return samples

    def _collect(self, block: list[Int64Array]) -> ColumnCollector:
        here, dataset, ids = self._here, self._dataset, np.concatenate(block)
        with here.progress.reading(ids, dataset.table.first_ids):
            try:
                return self._early(here.feed.collect, here.feed.collect_some, ids)
            except SKIPPED:
                if dataset.on_error == "raise":
                    raise
            read = here.feed.read_around(ids)
            # Numbers in place of samples: what stands in for a bad one is the number of a good one.
            numbers = [
                sample if isinstance(sample, Gap) else number for number, sample in zip(ids.tolist(), read, strict=True)
            ]
            good = [number for _, batch in self._filled(block, numbers) for number in batch]
            return here.feed.collect(np.array(good, dtype=np.int64))

    def _get_items(self, ids: list[int], samples: list[Any]) -> list[Any]:
        """Have the subclass make its samples from those that were read together."""
        here, dataset = self._here, self._dataset
        here.at_hand = {
            number: sample for number, sample in zip(ids, samples, strict=True) if not isinstance(sample, Gap)
        }
        if dataset.on_error == "raise":
            return [dataset[number] for number in ids]
        made: list[Any] = []
        for number, sample in zip(ids, samples, strict=True):
            try:
                made.append(sample if isinstance(sample, Gap) else dataset[number])
            except SKIPPED as error:
                made.append(Gap(error))
        return made

    def _filled(self, block: list[Int64Array], samples: list[Any]) -> Iterator[tuple[Int64Array, list[Any]]]:
        """Cut samples into batches and fill the gaps of each from its own."""
        end = 0
        for ids in block:
            begin, end = end, end + len(ids)
            batch = samples[begin:end]
            self._here.progress.skipped += fill_gaps(batch, ids.tolist())
            yield ids, batch
