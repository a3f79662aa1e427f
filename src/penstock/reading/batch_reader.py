"""Ids → samples: whatever lies in one shard is read together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from penstock.cache.progress import one_wait
from penstock.errors import CorruptShardError
from penstock.reading.columns import ColumnCollector, ReadSamples, SampleCollector
from penstock.reading.skip import SKIPPED, Gap
from penstock.spent import decoding, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from penstock.formats.base import Rows, ShardReader
    from penstock.order.id_spans import IdSpans
    from penstock.reading.columns import CollectedSamples
    from penstock.reading.open_shards import OpenShards
    from penstock.reading.source import RowReader
    from penstock.types import Columns, Int64Array, Sample

    _Part: TypeAlias = tuple[ShardReader, int, int]  # an open shard, and which of the grouped rows are its own
    _AnyCollector: TypeAlias = SampleCollector | ColumnCollector

C = TypeVar("C", SampleCollector, ColumnCollector)


# A hundred requests take little longer than one. Of more, each takes as long as many bytes on a good network.
_FEW_REQUESTS = 100
_COST_OF_FEW_BYTES = 8 << 10
_COST_OF_MANY_BYTES = 96 << 10


class BatchReader:
    """Reads samples by id, in the order asked for, from the shards that hold them."""

    def __init__(self, spans: IdSpans, shards: OpenShards, rows: RowReader | None = None) -> None:
        self._spans = spans
        self._shards = shards
        self._rows = rows

    def read_one(self, sample_id: int) -> Sample:
        """Give one sample, whose id is in range; from far away, maybe only its bytes are fetched."""
        shard = self._spans.shard_of(sample_id)
        row = sample_id - int(self._spans.starts[shard])
        with self._shards:
            if self._rows is not None and shard not in self._shards and self._rows.is_worth_it(shard, 1, 0):
                with self._shards.waiting(), waiting:
                    [reader] = self._rows.open([(shard, np.array([row]))], _nothing)
                return reader.read([0])[0]
            return self._shards.get(shard).read([row])[0]

    def read_some(self, ids: range | Int64Array) -> list[Sample]:
        """Give samples that are wanted soon or seldom; of shards from far away, maybe only their bytes are fetched."""
        collected = self.collect_some_samples(np.asarray(ids, np.int64), _nothing, _nothing)
        with decoding:
            return collected.samples()

    def collect_some_samples(
        self, ids: Int64Array, before_shards: Callable[[], None], meanwhile: Callable[[], None]
    ) -> CollectedSamples:
        """Give the same, to be taken some at a time.

        `before_shards` is called once those bytes are here, if whole shards are waited for, too. If not, `meanwhile`
        may be called while they are on their way.
        """
        if self._rows is None or not len(ids):
            before_shards()
            return self.collect_samples(ids)
        grouped = group_by_shard(ids, self._spans)
        collector = SampleCollector(grouped.rows, grouped.places)
        return self._fill(collector, self._readers_of_some(grouped, collector, before_shards, meanwhile))

    def collect_some(
        self, ids: Int64Array, before_shards: Callable[[], None], meanwhile: Callable[[], None]
    ) -> ColumnCollector:
        """Give the same by column, to be cut into batches."""
        if self._rows is None or not len(ids):
            before_shards()
            return self.collect(ids)
        grouped = group_by_shard(ids, self._spans)
        collector = ColumnCollector(grouped.rows, grouped.places)
        return self._fill(collector, self._readers_of_some(grouped, collector, before_shards, meanwhile))

    def _readers_of_some(
        self,
        grouped: GroupedRows,
        collector: _AnyCollector,
        before_shards: Callable[[], None],
        meanwhile: Callable[[], None],
    ) -> Iterator[_Part]:
        """Give readers, and which rows to read of each: what is far away first, all of it at once."""
        groups = list(grouped)
        few, cost_bytes = self._rows, _cost_of_asking([grouped.rows[begin:end] for _, begin, end in groups])
        far = [
            (shard, begin, end)
            for shard, begin, end in groups
            if few is not None and shard not in self._shards and few.is_worth_it(shard, end - begin, cost_bytes)
        ]
        fetched = {shard for shard, _, _ in far}
        left = [group for group in groups if group[0] not in fetched]
        if few is not None and far:
            wanted = [(shard, grouped.rows[begin:end].copy()) for shard, begin, end in far]
            with self._shards.waiting(), waiting:
                readers = few.open(wanted, _nothing if left else meanwhile)
            for reader, (_, begin, end) in zip(readers, far, strict=True):
                grouped.rows[begin:end] = np.arange(end - begin)  # such a reader has these rows and no others
                yield reader, begin, end
        if left:
            before_shards()
        yield from self._readers(left, collector)

    def read(self, ids: range | Int64Array) -> list[Sample]:
        """Give many samples."""
        samples = self._read_of_one_shard(ids)
        if samples is not None:
            return samples
        collected = self._collect_of_shards(ids)
        with decoding:
            return collected.samples()

    def collect_samples(self, ids: range | Int64Array) -> CollectedSamples:
        """Give many samples, to be taken some at a time; those of one shard are decoded already."""
        samples = self._read_of_one_shard(ids)
        return self._collect_of_shards(ids) if samples is None else ReadSamples(samples)

    def _read_of_one_shard(self, ids: range | Int64Array) -> list[Sample] | None:
        """Give many samples, if they all lie in one shard."""
        alone = within_one_shard(ids, self._spans)
        if alone is None:
            return None
        shard, rows = alone
        with self._shards:
            return self._shards.get(shard, len(rows)).read(rows)

    def _collect_of_shards(self, ids: range | Int64Array) -> SampleCollector:
        grouped = group_by_shard(np.asarray(ids, np.int64), self._spans)
        collector = SampleCollector(grouped.rows, grouped.places)
        return self._fill(collector, self._readers(grouped, collector))

    def read_around(self, ids: Int64Array) -> list[Sample | Gap]:
        """Give many samples, and a gap for each that cannot be read. A shard that fails is asked for once."""
        samples: list[Sample | Gap] = [Gap(CorruptShardError("not read"))] * len(ids)
        grouped = group_by_shard(ids, self._spans)
        for shard, begin, end in grouped:
            rows, places = grouped.rows[begin:end], grouped.places[begin:end]
            with self._shards:
                for place, sample in zip(places.tolist(), self._read_rows_around(shard, rows), strict=True):
                    samples[place] = sample
        return samples

    def _read_rows_around(self, shard: int, rows: Int64Array) -> Sequence[Sample | Gap]:
        try:
            reader = self._shards.get(shard, len(rows))
        except SKIPPED as error:
            return [Gap(error)] * len(rows)
        try:
            return reader.read(rows)
        except SKIPPED:
            return [_read_row(reader, row) for row in rows.tolist()]

    def read_columns(self, ids: range | Int64Array) -> Columns:
        """Give many samples by column: an array where the values allow it, else a list."""
        alone = within_one_shard(ids, self._spans)
        if alone is not None:
            shard, rows = alone
            with self._shards:
                return self._shards.get(shard, len(rows)).read_columns(rows)
        return self.collect(np.asarray(ids, np.int64)).columns()

    def collect(self, ids: Int64Array) -> ColumnCollector:
        """Give many samples by column, to be cut into batches."""
        grouped = group_by_shard(ids, self._spans)
        collector = ColumnCollector(grouped.rows, grouped.places)
        return self._fill(collector, self._readers(grouped, collector))

    def _readers(self, groups: Iterable[tuple[int, int, int]], collector: _AnyCollector) -> Iterator[_Part]:
        is_fetched = self._rows is not None
        for shard, begin, end in groups:
            if is_fetched and shard not in self._shards:
                collector.gather()  # what may be closed and removed while we wait should not be mapped any more
            yield self._shards.get(shard, end - begin), begin, end

    def _fill(self, collector: C, parts: Iterator[_Part]) -> C:
        with self._shards, one_wait():
            for reader, begin, end in parts:
                collector.add(reader, begin, end)
            collector.gather()
            with decoding:
                collector.finish()
        return collector


def _nothing() -> None:
    """What is done by whoever reads alone."""


def _read_row(reader: ShardReader, row: int) -> Sample | Gap:
    try:
        return reader.read([row])[0]
    except SKIPPED as error:
        return Gap(error)


def _cost_of_asking(rows_of_shards: Sequence[Int64Array]) -> float:
    """Say how long it takes to ask for the rows of each shard on average, in bytes that could be read instead.

    Rows that follow each other are one request.
    """
    num_requests = sum(1 + int(np.count_nonzero(np.diff(rows) > 1)) for rows in rows_of_shards)
    cost_bytes = _COST_OF_FEW_BYTES if num_requests <= _FEW_REQUESTS else _COST_OF_MANY_BYTES
    return cost_bytes * num_requests / len(rows_of_shards)


def within_one_shard(ids: range | Int64Array, spans: IdSpans) -> tuple[int, Rows] | None:
    """Give the shard and the rows if all ids lie in one shard, which then needs no sorting out."""
    if not len(ids):
        return None
    if isinstance(ids, range):
        low, high = (ids[0], ids[-1]) if ids.step > 0 else (ids[-1], ids[0])
    else:
        low, high = int(ids.min()), int(ids.max())
    shard = spans.shard_of(low)
    start = int(spans.starts[shard])
    if high >= spans.starts[shard + 1]:
        return None
    return shard, range(ids.start - start, ids.stop - start, ids.step) if isinstance(ids, range) else ids - start


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows sorted by shard, in rising order: memory is read faster forwards."""

    shards: list[int]
    ends: list[int]  # where the rows of each shard end
    rows: Int64Array
    places: Int64Array  # of each row among the ids that were asked for

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Give for each shard its number, and where its rows begin and end."""
        return zip(self.shards, [0, *self.ends], self.ends, strict=False)


def group_by_shard(ids: Int64Array, spans: IdSpans) -> GroupedRows:
    """Sort ids by the shards that hold them."""
    places = np.argsort(ids)
    sorted_ids = ids[places]
    if not len(ids):
        return GroupedRows([], [], sorted_ids, places)
    # Of all shards, only the few between the smallest and the largest id are searched for where they begin.
    first, last = spans.shard_of(int(sorted_ids[0])), spans.shard_of(int(sorted_ids[-1]))
    if first == last:
        return GroupedRows([first], [len(ids)], sorted_ids - int(spans.starts[first]), places)
    if last - first < len(ids):
        shards = np.arange(first, last + 1)
        cuts = np.searchsorted(sorted_ids, spans.starts[first : last + 2])
    else:
        located = spans.locate(sorted_ids)[0]
        shards = located[np.flatnonzero(np.diff(located, prepend=-1))]
        cuts = np.append(np.searchsorted(sorted_ids, spans.starts[shards]), len(ids))
    counts = np.diff(cuts)
    has_any = counts > 0
    shards, ends = shards[has_any], cuts[1:][has_any]
    rows = sorted_ids - np.repeat(spans.starts[shards], counts[has_any])
    return GroupedRows(shards.tolist(), ends.tolist(), rows, places)
