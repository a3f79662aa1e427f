"""One worker's way through a pass: ids in blocks, samples or columns out."""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import length_hint
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from penstock.errors import ConfigError, StoreError, StoreTimeoutError
from penstock.reading.collected_rows import BatchReader, Soon, group_by_shard
from penstock.reading.kept_rows import KeptSource, whole_of
from penstock.reading.open_shards import OpenShards, pages_budget
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
from penstock.reading.source import (
    FollowsSamples,
    SharesSpace,
    fetched_by,
    mean_sizes,
    portion_bytes,
    row_reader_of,
    samples_ahead,
)
from penstock.reading.transforms import SKIPPED, UnreadableSample
from penstock.thread_times import thread_times
from penstock.units import check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.counters import Row
    from penstock.formats.base import ShardReader
    from penstock.order.keys import UInt64Array
    from penstock.reading.collected_rows import CollectedRows
    from penstock.reading.sample_rng import SampleRng
    from penstock.reading.schedule import BatchSchedule
    from penstock.reading.source import FetchesShards, Source
    from penstock.reading.transforms import MakeColumns
    from penstock.types import Columns, Int64Array, Sample

    # Makes what stands in the place of samples that were read, by their ids and, if wanted, their keys to draw from;
    # some may be gaps, which stay.
    MakeSamples: TypeAlias = Callable[[list[int], list[Any], UInt64Array | None], list[Any]]
    ReadBlock: TypeAlias = Callable[..., CollectedRows]  # of ids, and of a `Soon` if they are the first

log = logging.getLogger("penstock.data")

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
        if self.cache_limit is not None and self.cache_limit <= 0:
            raise ConfigError(f"cache_limit is {self.cache_limit} bytes, too small for any shard: raise it")


# --- What a process reads with, and what it counts -------------------------------------------------------------------


class ReadCounts:
    """Counts for one thread what it reads in passes, and what its time goes to; whole blocks at a time."""

    def __init__(self, row: Row, source: Source, first_ids: Int64Array) -> None:
        self._row, self._first_ids = row, first_ids
        sizes = np.concatenate([[0], np.cumsum(source.sizes)])
        first_rows = source.first_rows if isinstance(source, KeptSource) else first_ids
        ends = sizes[np.searchsorted(whole_of(source).spans.starts, first_rows)]
        # Of each stream, what a sample takes on average as it is stored.
        self._sample_bytes: list[float] = (np.diff(ends) / np.maximum(1, np.diff(first_rows))).tolist()
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


class DeliveredCount:
    """Counts the samples of a pass that were taken: those handed over, but for what is left of the last piece."""

    __slots__ = ("_handed_over", "_left", "schedule")

    def __init__(self, schedule: BatchSchedule, before: int = 0) -> None:
        self.schedule, self._handed_over = schedule, before
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


class ThreadReader(BatchReader):
    """Reads for one thread at a time, and counts what it reads. Nothing in it is carried over a fork."""

    def __init__(self, source: Source, counts: ReadCounts) -> None:
        stored = source.stored if isinstance(source, KeptSource) else None
        shards = OpenShards(source.open, sizes=source.sizes)
        super().__init__(whole_of(source).spans, shards, row_reader_of(source), stored)
        self.source, self.counts = source, counts
        if isinstance(source, SharesSpace):
            source.share_limit(self.shards)


class ProcessReaders:
    """The reader of this process and those of its threads."""

    def __init__(self, source: Source, first_ids: Int64Array, row: Row, *, is_worker: bool) -> None:
        if is_worker:
            # What came from the parent is shared with it until one of both writes to it, as the collector does to all
            # that it looks at. In a worker none of that is garbage.
            gc.freeze()
        self._source, self._first_ids, self._row = source, first_ids, row
        self._all: list[ThreadReader] = []  # also those that were left to a thread which may still read
        self._idle: list[ThreadReader] = []  # of those that are borrowed
        self._of_thread: ThreadReader | None = None
        self.main = self._make_reader()
        self.under_way: DeliveredCount | None = None  # the pass that this process reads itself
        # Samples that were read with others and that will be asked for one by one next.
        self.at_hand: dict[int, Any] = {}
        self.rng: SampleRng | None = None  # of the sample that is being made of one at hand

    def of_thread(self) -> ThreadReader:
        """Return the reader of the thread that reads ahead, which finds it as it left it in the pass before."""
        if self._of_thread is None:
            self._of_thread = self._make_reader()
        return self._of_thread

    def abandon_thread(self) -> None:
        """Have the thread that comes next share nothing with the one of now, which may still wait for a store."""
        self._of_thread = None

    @contextmanager
    def borrow_reader(self) -> Iterator[ThreadReader]:
        """Lend a reader for one use, in any thread; the next use finds it as it was left."""
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = self._make_reader()
        try:
            yield reader
        finally:
            self._idle.append(reader)

    def _make_reader(self) -> ThreadReader:
        reader = ThreadReader(self._source, ReadCounts(self._row, self._source, self._first_ids))
        self._all.append(reader)
        return reader

    def close(self) -> None:
        """Close the shards that are open; reading on opens them again."""
        for reader in list(self._all):
            reader.shards.close()


# --- A pass ----------------------------------------------------------------------------------------------------------


class PassReader:
    """Reads the batches of a schedule from a source.

    `make` gives what the pass yields for the samples that were read, and `make_columns` the same by column; with
    `draws`, they get keys to draw from. A holder of `delivered` knows how far the pass has come, without holding its
    reader.
    """

    def __init__(
        self,
        reader: ThreadReader,
        options: PassOptions,
        delivered: DeliveredCount,
        *,
        make: MakeSamples | None = None,
        make_columns: MakeColumns | None = None,
        draws: bool = False,
    ) -> None:
        schedule, source = delivered.schedule, reader.source
        self._schedule, self._source, self._reader, self._options = schedule, source, reader, options
        self._fetched = fetched_by(source)
        self._delivered, self._make, self._make_columns = delivered, make, make_columns
        self._draws = draws
        self._sample_bytes, shard_bytes = mean_sizes(whole_of(source))
        self._portion_size = portion_size(self._sample_bytes, portion_bytes(source))
        self._has_large_shards = shard_bytes >= _LARGE_SHARD_BYTES
        world = schedule.seat.world
        num_readers = world.ranks_per_node * world.workers_per_rank
        reader.shards.max_open = max_open_shards(
            limit_bytes=None if self._fetched is None else options.cache_limit,
            shard_bytes=shard_bytes,
            num_readers=num_readers,
        )
        reader.shards.max_mapped_bytes = pages_budget(num_readers)
        ahead = samples_ahead(source)
        self._announcer = Announcer(schedule, source) if isinstance(source, FollowsSamples) and ahead else None
        self._prefetcher: Prefetcher | None = None
        if self._fetched is not None and schedule.seat.worker == 0:  # one worker of each rank looks for all of them
            num_batches = batches_ahead(
                predownload=options.predownload,
                batch_size=schedule.batch_size,
                sample_bytes=self._sample_bytes,
                limit_bytes=options.cache_limit,
                ranks_per_node=world.ranks_per_node,
            )
            self._prefetcher = Prefetcher(schedule, self._fetched, max(num_batches, -(-ahead // schedule.batch_size)))
        self._has_begun = False
        self._step = 0

    def samples(self) -> Iterator[Iterator[Any]]:
        """Yield samples, in pieces to be laid end to end.

        The very first one comes alone: a whole batch may lie in hundreds of shards that have to be opened. But what
        stands in for bad samples is of the same batch.
        """
        if self._fetched is None and not (self._skips or self._delivered.count):
            if self._announcer is not None:  # what is decoded on the way to it may be wanted soon
                self._announcer.look_ahead(0)
            first = self._schedule.first_id(0)
            yield from self._read(first, self._keys_of(0, [first]))
        for batches, turn, skipped in self._blocks(by_column=False):
            keys = self._keys_of(turn, batches)
            if self._skips:
                yield self._delivered.hand_over(self._read_around(batches, keys)[skipped:])
                continue
            ids = np.concatenate(batches)[skipped:]
            keys = None if keys is None else keys[skipped:]
            # Large samples come in portions, but a first batch from far away is asked for as a whole.
            is_whole = self._fetched is not None and not self._has_begun
            most = max(1, len(ids)) if is_whole or self._portion_size is None else self._portion_size
            for begin in range(0, len(ids), most):
                portion = slice(begin, begin + most)
                yield from self._read(ids[portion], None if keys is None else keys[portion])

    def columns(self) -> Iterator[Columns]:
        """Yield batch after batch, by column."""
        for batches, turn, skipped in self._blocks(by_column=True):
            block, keys = self._read_columns(batches), self._keys_of(turn, batches)
            end = 0
            for ids in batches:
                begin, end = end + min(skipped, len(ids)), end + len(ids)
                skipped = max(0, skipped - len(ids))
                if begin < end:
                    self._delivered.add(end - begin)
                    yield self._cut(block, begin, end, ids, None if keys is None else keys[begin:end])
            self._reader.counts.flush()

    def _cut(self, block: CollectedRows, begin: int, end: int, ids: Int64Array, keys: UInt64Array | None) -> Columns:
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
            return self._make_columns(ids[begin - end :], columns, keys)

    def _keys_of(self, turn: int, batches: list[Int64Array]) -> UInt64Array | None:
        return self._schedule.keys(turn, batches) if self._draws else None

    def _blocks(self, *, by_column: bool) -> Iterator[tuple[list[Int64Array], int, int]]:
        """Yield the ids of several batches, the turn of the first, and how many of its samples were yielded before."""
        schedule = self._schedule
        turn, skipped = divmod(self._delivered.count, schedule.batch_size)
        for block in schedule.blocks(turn, self._sample_bytes, self._source.spans, by_column=by_column):
            self._step = schedule.seat.step_of(turn)
            if self._announcer is not None:
                self._announcer.look_ahead(turn)
            yield block, turn, skipped
            turn += len(block)
            skipped = 0

    @property
    def _skips(self) -> bool:
        return self._options.on_error == "skip"

    # --- Reading a block ------------------------------------------------------------------------------------

    def _read(self, ids: Int64Array, keys: UInt64Array | None) -> Iterator[Iterator[Any]]:
        """Read samples all at once, and hand over some at a time of what was read."""
        reader = self._reader
        block: CollectedRows | None = None
        step = decoded_at_once(len(ids), self._sample_bytes)
        for begin in range(0, len(ids), step):
            some = slice(begin, min(begin + step, len(ids)))
            with reader.counts.reading(ids if block is None else ids[:0]):
                if block is None:
                    block = self._block(reader.read, ids)
                # No list of them is kept here: they are freed when they were taken.
                drawn = None if keys is None else keys[some]
                samples = self._delivered.hand_over(self._made(ids[some], block.samples(some.start, some.stop), drawn))
            yield samples

    def _read_around(self, batches: list[Int64Array], keys: UInt64Array | None) -> list[Any]:
        """Read a block; where samples cannot be read, others of their batches are in their places."""
        reader, ids = self._reader, np.concatenate(batches)
        with reader.counts.reading(ids):
            samples: list[Any]
            try:
                samples = self._block(reader.read, ids).samples()
            except SKIPPED:
                samples = read_around(reader, ids)
            return self._filled(batches, self._made(ids, samples, keys))

    def _made(self, ids: Int64Array, samples: list[Any], keys: UInt64Array | None) -> list[Any]:
        if self._make is None:
            return samples
        with self._reader.counts.transforming():
            return self._make(ids.tolist(), samples, keys)

    def _read_columns(self, batches: list[Int64Array]) -> CollectedRows:
        reader, ids = self._reader, np.concatenate(batches)
        with reader.counts.reading(ids):
            try:
                return self._block(partial(reader.read, by_column=True, is_cut=True), ids)
            except SKIPPED:
                if not self._skips:
                    raise
            return self._columns_around(batches)

    def _columns_around(self, batches: list[Int64Array]) -> CollectedRows:
        """Read a block again that has bad samples, with others of their batches in their places."""
        reader, ids = self._reader, np.concatenate(batches)
        # Numbers in place of samples: what stands in for a bad one is the number of a good one.
        numbers = [
            sample if isinstance(sample, UnreadableSample) else number
            for number, sample in zip(ids.tolist(), read_around(reader, ids), strict=True)
        ]
        return reader.read(np.array(self._filled(batches, numbers), dtype=np.int64), by_column=True)

    def _block(self, read: ReadBlock, ids: Int64Array) -> CollectedRows:
        """Read a block; the first one of a pass, which the training loop stands still for, does not wait for shards.

        The shards of later batches are asked for after it, since they would take the network from it: large ones, of
        which few come at a time, once all of it was asked for.
        """
        is_first, self._has_begun = not self._has_begun, True
        if is_first and self._fetched is not None:
            block = self._first_block(read, ids, self._fetched)
            self._look_ahead()
            return block
        self._look_ahead()
        return read(ids)

    def _first_block(self, read: ReadBlock, ids: Int64Array, fetched: FetchesShards) -> CollectedRows:
        schedule, spans = self._schedule, self._source.spans
        ask = partial(ask_for_shards, fetched, spans, ids, schedule.seat.worker)
        size = schedule.global_batch_size
        if self._prefetcher and may_read_first_alone(global_batch_size=size, num_samples=spans.num_samples):
            try:
                return read(ids, Soon(ask, self._look_ahead) if self._has_large_shards else Soon(ask))
            except StoreTimeoutError:  # all patience is used up: trying whole shards would take as long again
                raise
            except StoreError:  # reading whole shards says what is wrong, or finds that nothing is
                pass
        ask()
        return read(ids)

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


# --- Samples that cannot be read: another good one of the same batch stands in for each ------------------------------


def read_around(reader: BatchReader, ids: Int64Array) -> list[Sample | UnreadableSample]:
    """Read samples that cannot all be read, row by row where need be; a gap stands for each that cannot.

    A shard that fails is asked for once.
    """
    grouped, shards = group_by_shard(np.asarray(reader.stored(ids)), reader.spans), reader.shards
    samples: dict[int, Sample | UnreadableSample] = {}
    for shard, begin, end in grouped:
        rows, places = grouped.rows[begin:end], grouped.places[begin:end].tolist()
        with shards:
            try:
                opened = shards.get(shard, len(rows))
            except SKIPPED as error:
                samples.update(dict.fromkeys(places, UnreadableSample(error)))
                continue
            try:
                samples.update(zip(places, opened.read(rows), strict=True))
            except SKIPPED:
                samples.update(zip(places, [_read_row(opened, row) for row in rows.tolist()], strict=True))
    return [samples[place] for place in range(len(ids))]


def _read_row(reader: ShardReader, row: int) -> Sample | UnreadableSample:
    try:
        return reader.read([row])[0]
    except SKIPPED as error:
        return UnreadableSample(error)


def fill_gaps(batch: list[Any], ids: Sequence[int]) -> int:
    """Put good samples of a batch in the place of those that could not be read; give the number of these.

    A batch without any good sample raises the error of its first.
    """
    gaps = [place for place, sample in enumerate(batch) if isinstance(sample, UnreadableSample)]
    if not gaps:
        return 0
    good = [sample for sample in batch if not isinstance(sample, UnreadableSample)]
    if not good:
        raise batch[0].error
    for number, place in enumerate(gaps):
        log.warning("skipping sample %s: %s", ids[place], batch[place].error)
        batch[place] = good[number % len(good)]
    return len(gaps)
