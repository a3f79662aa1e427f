"""One worker's way through a pass: ids in blocks, samples or columns out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from penstock.errors import ConfigError, StoreError, StoreTimeoutError
from penstock.reading.collected_rows import Soon
from penstock.reading.open_shards import pages_budget
from penstock.reading.schedule import (
    Announcer,
    Prefetcher,
    ask_for_shards,
    batches_ahead,
    decoded_at_once,
    max_open_shards,
    may_read_first_alone,
    portion_size,
)
from penstock.reading.skip import SKIPPED, UnreadableSample, fill_gaps, read_around
from penstock.reading.source import FollowsSamples, fetched_by, mean_sizes, portion_bytes, samples_ahead
from penstock.units import check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.reading.collected_rows import CollectedRows
    from penstock.reading.readers import DeliveredCount, ThreadReader
    from penstock.reading.schedule import BatchSchedule
    from penstock.reading.source import Source
    from penstock.types import Columns, Int64Array

    # Gives what stands in the place of samples that were read, by their ids; some may be gaps, which stay.
    MakeSamples: TypeAlias = Callable[[list[int], list[Any]], list[Any]]
    MakeColumns: TypeAlias = Callable[[Int64Array, Columns], Columns]
    ReadBlock: TypeAlias = Callable[..., CollectedRows]  # of ids, and of a `Soon` if they are the first

_LARGE_SHARD_BYTES = 4 << 20  # of which one takes longer than a few round trips


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOptions:
    """How a pass is read, whatever it reads."""

    on_error: Literal["raise", "skip"] = "raise"
    predownload: int | None = None  # samples that each rank has fetched ahead; None: by bytes
    cache_limit: int | None = None  # what all readers of the node may hold together

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise ConfigError(f"unknown on_error {self.on_error!r}: use 'raise' or 'skip'")
        check_whole("predownload", self.predownload, 0)


class PassReader:
    """Reads the batches of a schedule from a source.

    `make` gives what the pass yields for the samples that were read, and `make_columns` the same by column. Whoever
    holds `delivered` knows how far the pass has come, without holding its reader.
    """

    def __init__(
        self,
        schedule: BatchSchedule,
        source: Source,
        reader: ThreadReader,
        options: PassOptions,
        *,
        delivered: DeliveredCount,
        make: MakeSamples | None = None,
        make_columns: MakeColumns | None = None,
    ) -> None:
        self._schedule, self._source, self._reader, self._options = schedule, source, reader, options
        self._fetched = fetched_by(source)
        self._delivered, self._make, self._make_columns = delivered, make, make_columns
        self._sample_bytes, shard_bytes = mean_sizes(source)
        self._portion_size = portion_size(self._sample_bytes, portion_bytes(source))
        self._has_large_shards = shard_bytes >= _LARGE_SHARD_BYTES
        world = schedule.seat.world
        num_readers = world.ranks_per_node * world.workers_per_rank
        reader.open_shards.max_open = max_open_shards(
            limit_bytes=None if self._fetched is None else options.cache_limit,
            shard_bytes=shard_bytes,
            num_readers=num_readers,
        )
        reader.open_shards.max_mapped_bytes = pages_budget(num_readers)
        self._prefetcher = self._start_prefetching()
        self._announcer: Announcer | None = None
        if isinstance(source, FollowsSamples) and source.samples_ahead:
            self._announcer = Announcer(schedule, source)
        self._has_begun = False
        self._step = 0

    def _start_prefetching(self) -> Prefetcher | None:
        """Have one worker of each rank look ahead for all of them."""
        schedule, options = self._schedule, self._options
        if self._fetched is None or schedule.seat.worker != 0:
            return None
        ahead = batches_ahead(
            predownload=options.predownload,
            batch_size=schedule.batch_size,
            sample_bytes=self._sample_bytes,
            limit_bytes=options.cache_limit,
            ranks_per_node=schedule.seat.world.ranks_per_node,
        )
        ahead = max(ahead, -(-samples_ahead(self._source) // schedule.batch_size))
        return Prefetcher(schedule, self._fetched, ahead)

    def samples(self) -> Iterator[Iterator[Any]]:
        """Yield samples, in pieces to be laid end to end.

        The very first one comes alone: a whole batch may lie in hundreds of shards that have to be opened.
        """
        if self._begins_alone:
            if self._announcer is not None:  # what is decoded on the way to it may be wanted soon
                self._announcer.look_ahead(0)
            yield from self._read(self._schedule.first_id(0))
        for block, skipped in self._blocks(by_column=False):
            for portion, passed in self._portions(block, skipped):
                if self._skips:
                    yield self._delivered.hand_over(self._read_around(portion)[passed:])
                else:
                    yield from self._read(np.concatenate(portion)[passed:])

    def columns(self) -> Iterator[Columns]:
        """Yield batch after batch, by column."""
        for batches, skipped in self._blocks(by_column=True):
            block = self._read_columns(batches)
            end = 0
            for ids in batches:
                begin, end = end + min(skipped, len(ids)), end + len(ids)
                skipped = max(0, skipped - len(ids))
                if begin < end:
                    self._delivered.add(end - begin)
                    yield self._cut(block, begin, end, ids)
            self._reader.counts.flush()

    def _cut(self, block: CollectedRows, begin: int, end: int, ids: Int64Array) -> Columns:
        counts, begun_ns = self._reader.counts, perf_counter_ns()
        try:
            columns = block.columns(begin, end)
        except SKIPPED:  # large values are decoded only now
            if not self._skips:
                raise
            columns = self._columns_around([ids]).columns(begin - end + len(ids))
        counts.collated(begun_ns)
        if self._make_columns is None:
            return columns
        with counts.transforming():
            return self._make_columns(ids[begin - end :], columns)

    def _portions(self, block: list[Int64Array], skipped: int) -> Iterator[tuple[list[Int64Array], int]]:
        """Cut a block of large samples into portions, each with the number of its samples that were yielded before."""
        most = self._portion_size
        # What stands in for bad samples is of the same batch, and a first one from far away is asked for as a whole.
        is_whole = self._skips or (self._fetched is not None and not self._has_begun)
        if most is None or is_whole:
            yield block, skipped
            return
        ids = np.concatenate(block)[skipped:]
        for begin in range(0, len(ids), most):
            yield [ids[begin : begin + most]], 0

    def _blocks(self, *, by_column: bool) -> Iterator[tuple[list[Int64Array], int]]:
        """Yield the ids of several batches at a time, and how many samples of the first one were yielded before."""
        schedule = self._schedule
        turn, skipped = divmod(self._delivered.count, schedule.batch_size)
        for block in schedule.blocks(turn, self._sample_bytes, self._source.spans, by_column=by_column):
            self._step = schedule.seat.step_of(turn)
            if self._announcer is not None:
                self._announcer.look_ahead(turn)
            turn += len(block)
            yield block, skipped
            skipped = 0

    @property
    def _begins_alone(self) -> bool:
        """Whether to read the first sample before its batch; what stands in for a bad one is of the same batch."""
        return self._fetched is None and not (self._skips or self._delivered.count)

    @property
    def _skips(self) -> bool:
        return self._options.on_error == "skip"

    # --- Reading a block ------------------------------------------------------------------------------------

    def _read(self, ids: Int64Array) -> Iterator[Iterator[Any]]:
        """Read samples all at once, and hand over some at a time of what was read."""
        reader = self._reader
        block: CollectedRows | None = None
        step = decoded_at_once(len(ids), self._sample_bytes)
        for begin in range(0, len(ids), step):
            some = slice(begin, min(begin + step, len(ids)))
            with reader.counts.reading(ids if block is None else ids[:0]):
                if block is None:
                    block = self._block(reader.batches.read, ids)
                # No list of them is kept here: they are freed when they were taken.
                samples = self._delivered.hand_over(self._made(ids[some], block.samples(some.start, some.stop)))
            yield samples

    def _read_around(self, batches: list[Int64Array]) -> list[Any]:
        """Read a block; where samples cannot be read, others of their batches are in their places."""
        reader, ids = self._reader, np.concatenate(batches)
        with reader.counts.reading(ids):
            samples: list[Any]
            try:
                samples = self._block(reader.batches.read, ids).samples()
            except SKIPPED:
                samples = read_around(reader.batches, ids)
            return self._filled(batches, self._made(ids, samples))

    def _made(self, ids: Int64Array, samples: list[Any]) -> list[Any]:
        if self._make is None:
            return samples
        with self._reader.counts.transforming():
            return self._make(ids.tolist(), samples)

    def _read_columns(self, batches: list[Int64Array]) -> CollectedRows:
        reader, ids = self._reader, np.concatenate(batches)
        with reader.counts.reading(ids):
            try:
                return self._block(partial(reader.batches.read_columns, is_cut=True), ids)
            except SKIPPED:
                if not self._skips:
                    raise
            return self._columns_around(batches)

    def _columns_around(self, batches: list[Int64Array]) -> CollectedRows:
        """Read a block again that has bad samples, with others of their batches in their places."""
        reader, ids = self._reader.batches, np.concatenate(batches)
        # Numbers in place of samples: what stands in for a bad one is the number of a good one.
        numbers = [
            sample if isinstance(sample, UnreadableSample) else number
            for number, sample in zip(ids.tolist(), read_around(reader, ids), strict=True)
        ]
        return reader.read_columns(np.array(self._filled(batches, numbers), dtype=np.int64))

    def _block(self, read: ReadBlock, ids: Int64Array) -> CollectedRows:
        """Read a block; the first one of a pass, which the training loop stands still for, does not wait for shards.

        The shards of later batches are asked for after it, since they would take the network from it: large ones, of
        which few come at a time, once all of it is on its way.
        """
        is_first, self._has_begun = not self._has_begun, True
        if is_first and self._fetched is not None:
            ask = partial(ask_for_shards, self._fetched, self._source.spans, ids, self._schedule.seat.worker)
            block = self._first_block(read, ids, ask)
            self._look_ahead()
            return block
        self._look_ahead()
        return read(ids)

    def _first_block(self, read: ReadBlock, ids: Int64Array, ask: Callable[[], None]) -> CollectedRows:
        if self._prefetcher is not None and self._is_first_little:
            try:
                return read(ids, Soon(ask, self._look_ahead) if self._has_large_shards else Soon(ask))
            except StoreTimeoutError:  # all patience is used up: trying whole shards would take as long again
                raise
            except StoreError:  # reading whole shards says what is wrong, or finds that nothing is
                pass
        ask()
        return read(ids)

    @property
    def _is_first_little(self) -> bool:
        size, num_samples = self._schedule.global_batch_size, self._source.spans.num_samples
        return may_read_first_alone(global_batch_size=size, num_samples=num_samples)

    def _look_ahead(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.look_ahead(self._step)

    def _filled(self, block: list[Int64Array], samples: list[Any]) -> list[Any]:
        """Cut samples into batches, and fill the gaps of each from its own."""
        end = 0
        filled: list[Any] = []
        for ids in block:
            begin, end = end, end + len(ids)
            batch = samples[begin:end]
            self._reader.counts.skip(fill_gaps(batch, ids.tolist()))
            filled += batch
        return filled
