"""Ids → samples: whatever lies in one shard is read together."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from penstock.cache.progress import one_wait
from penstock.errors import CorruptShardError
from penstock.reading.columns import ColumnCollector, SampleCollector
from penstock.reading.skip import SKIPPED, Gap
from penstock.spent import decoding, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from penstock.formats.base import Rows, ShardReader
    from penstock.order.id_spans import IdSpans
    from penstock.reading.open_shards import OpenShards
    from penstock.reading.source import RowReader
    from penstock.types import Columns, Int64Array, Sample

    _Part: TypeAlias = tuple[ShardReader, Int64Array, Int64Array]  # an open shard, rows of it, and their places

C = TypeVar("C", SampleCollector, ColumnCollector)


# A hundred requests take little longer than one. Of more, each takes as long as many bytes on a good network.
_FEW_ROWS = 100
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
                    [reader] = self._rows.open([(shard, np.array([row]))])
                return reader.read([0])[0]
            return self._shards.get(shard).read([row])[0]

    def read_some(self, ids: range | Int64Array, before_shards: Callable[[], None] = lambda: None) -> list[Sample]:
        """Give samples that are wanted soon or seldom; of shards from far away, maybe only their bytes are fetched.

        `before_shards` is called once those bytes are here, before whole shards are waited for.
        """
        if self._rows is None or not len(ids):
            return self.read(ids)
        return self._samples(len(ids), self._readers_of_some(np.asarray(ids, np.int64), before_shards))

    def collect_some(self, ids: Int64Array, before_shards: Callable[[], None]) -> ColumnCollector:
        """Give the same by column, to be cut into batches."""
        if self._rows is None or not len(ids):
            return self.collect(ids)
        return self._fill(ColumnCollector(len(ids)), self._readers_of_some(ids, before_shards))

    def _readers_of_some(self, ids: Int64Array, before_shards: Callable[[], None]) -> Iterator[_Part]:
        """Give readers, the rows to read of each and their places: what is far away first, all of it at once."""
        groups = list(group_by_shard(ids, self._spans))
        few, cost_bytes = self._rows, _cost_of_asking(len(ids), len(groups))
        far = [
            (shard, rows, places)
            for shard, rows, places in groups
            if few is not None and shard not in self._shards and few.is_worth_it(shard, len(rows), cost_bytes)
        ]
        if few is not None and far:
            with self._shards.waiting(), waiting:
                readers = few.open([(shard, rows) for shard, rows, _ in far])
            for reader, (_, rows, places) in zip(readers, far, strict=True):
                yield reader, np.arange(len(rows)), places
        before_shards()
        fetched = {shard for shard, _, _ in far}
        for shard, rows, places in groups:
            if shard not in fetched:
                yield self._shards.get(shard, len(rows)), rows, places

    def read(self, ids: range | Int64Array) -> list[Sample]:
        """Give many samples."""
        alone = within_one_shard(ids, self._spans)
        with self._shards:
            if alone is not None:
                shard, rows = alone
                return self._shards.get(shard, len(rows)).read(rows)
        return self._samples(len(ids), self._readers(np.asarray(ids, np.int64)))

    def read_around(self, ids: Int64Array) -> list[Sample | Gap]:
        """Give many samples, and a gap for each that cannot be read. A shard that fails is asked for once."""
        samples: list[Sample | Gap] = [Gap(CorruptShardError("not read"))] * len(ids)
        for shard, rows, places in group_by_shard(ids, self._spans):
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
        with self._shards:
            if alone is not None:
                shard, rows = alone
                return self._shards.get(shard, len(rows)).read_columns(rows)
        return self.collect(np.asarray(ids, np.int64)).columns()

    def collect(self, ids: Int64Array) -> ColumnCollector:
        """Give many samples by column, to be cut into batches."""
        return self._fill(ColumnCollector(len(ids)), self._readers(ids))

    def _readers(self, ids: Int64Array) -> Iterator[_Part]:
        for shard, rows, places in group_by_shard(ids, self._spans):
            yield self._shards.get(shard, len(rows)), rows, places

    def _samples(self, num_rows: int, parts: Iterator[_Part]) -> list[Sample]:
        collector = self._fill(SampleCollector(num_rows), parts)
        with decoding:
            return collector.samples()

    def _fill(self, collector: C, parts: Iterator[_Part]) -> C:
        with self._shards, one_wait():
            for reader, rows, places in parts:
                collector.add(reader, rows, places)
            collector.gather()
            with decoding:
                collector.finish()
        return collector


def _read_row(reader: ShardReader, row: int) -> Sample | Gap:
    try:
        return reader.read([row])[0]
    except SKIPPED as error:
        return Gap(error)


def _cost_of_asking(num_rows: int, num_shards: int) -> float:
    """Say how long it takes to ask for the rows of each shard on average, in bytes that could be read instead."""
    return (_COST_OF_FEW_BYTES if num_rows <= _FEW_ROWS else _COST_OF_MANY_BYTES) * num_rows / num_shards


def within_one_shard(ids: range | Int64Array, spans: IdSpans) -> tuple[int, Rows] | None:
    """Give the shard and the rows if all ids lie in one shard, which then needs no sorting out."""
    if not len(ids):
        return None
    if isinstance(ids, range):
        low, high = sorted((ids[0], ids[-1]))
    else:
        low, high = int(ids.min()), int(ids.max())
    shard = spans.shard_of(low)
    start = int(spans.starts[shard])
    if high >= spans.starts[shard + 1]:
        return None
    return shard, range(ids.start - start, ids.stop - start, ids.step) if isinstance(ids, range) else ids - start


def group_by_shard(ids: Int64Array, spans: IdSpans) -> Iterator[tuple[int, Int64Array, Int64Array]]:
    """Give for each shard that holds some of the ids: its number, the rows, and their places among the ids.

    Rows come in rising order: memory is read faster forwards.
    """
    if not len(ids):
        return
    order = np.argsort(ids)
    sorted_ids = ids[order]
    # Of all shards, only the few between the smallest and the largest id are searched for where they begin.
    first, last = spans.shard_of(int(sorted_ids[0])), spans.shard_of(int(sorted_ids[-1]))
    if last - first < len(ids):
        shards = np.arange(first, last + 1)
        cuts = np.searchsorted(sorted_ids, spans.starts[first : last + 2]).tolist()
    else:
        shards = np.unique(spans.locate(sorted_ids)[0])
        cuts = [*np.searchsorted(sorted_ids, spans.starts[shards]).tolist(), len(ids)]
    for shard, begin, end in zip(shards.tolist(), cuts, cuts[1:], strict=False):
        if begin < end:
            yield shard, sorted_ids[begin:end] - spans.starts[shard], order[begin:end]
