"""Ids → samples: whatever lies in one shard is read together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.cache.progress import single_progress_line
from penstock.reading.block import Block
from penstock.thread_times import decoding, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from penstock.formats.base import Rows
    from penstock.order.id_spans import IdSpans
    from penstock.reading.open_shards import OpenShards
    from penstock.reading.source import RowReader
    from penstock.types import Int64Array, Sample

    _Group: TypeAlias = tuple[int, int, int]  # a shard, and which of the grouped rows are its own


def _nothing() -> None:
    """Do nothing, around what is read."""


# A hundred requests take little longer than one. Of more, each takes as long as many bytes on a good network.
_FEW_REQUESTS = 100
_COST_OF_FEW_BYTES = 8 << 10
_COST_OF_MANY_BYTES = 96 << 10


class Soon(NamedTuple):
    """Rows that are wanted soon or seldom: of shards from far away, maybe only their bytes are fetched."""

    before_shards: Callable[[], None] = _nothing  # called once those bytes are here, if shards are waited for, too
    meanwhile: Callable[[], None] = _nothing  # if not, it may be called while those bytes are on their way


SOON = Soon()


class BatchReader:
    """Reads samples by id, in the order asked for, from the shards that hold them."""

    def __init__(self, spans: IdSpans, shards: OpenShards, rows: RowReader | None = None) -> None:
        self.spans, self.shards = spans, shards
        self._rows = rows

    def read_one(self, sample_id: int) -> Sample:
        """Return one sample, whose id is in range; from far away, maybe only its bytes are fetched."""
        shard = self.spans.shard_of(sample_id)
        row = sample_id - int(self.spans.starts[shard])
        with self.shards:
            if self._rows is not None and shard not in self.shards and self._rows.is_worth_it(shard, 1, 0):
                with self.shards.waiting(), waiting:
                    [reader] = self._rows.open([(shard, np.array([row]))], _nothing)
                return reader.read([0])[0]
            return self.shards.get(shard).read([row])[0]

    def read(self, ids: range | Int64Array, soon: Soon | None = None) -> Block:
        """Read samples, to be taken some at a time; those of one shard are decoded already."""
        return self._read(ids, soon, by_column=False, is_cut=False)

    def read_columns(self, ids: range | Int64Array, soon: Soon | None = None, *, is_cut: bool = False) -> Block:
        """Read samples by column: each an array where the values allow it, else a list.

        Where these are cut into batches (`is_cut`), large values are copied when their batch is taken.
        """
        return self._read(ids, soon, by_column=True, is_cut=is_cut)

    def _read(self, ids: range | Int64Array, soon: Soon | None, *, by_column: bool, is_cut: bool) -> Block:
        if soon is not None and self._rows is None:
            soon.before_shards()
            soon = None
        alone = within_one_shard(ids, self.spans) if soon is None and not is_cut else None
        if alone is not None:
            shard, rows = alone
            with self.shards:
                return Block.of_one_shard(self.shards.get(shard, len(rows)), rows, by_column=by_column)
        grouped = group_by_shard(np.asarray(ids, np.int64), self.spans)
        block = Block(grouped.rows, grouped.places, by_column=by_column)
        groups = list(grouped)
        with self.shards, single_progress_line():
            if soon is not None and groups:
                groups = self._add_few(block, grouped, groups, soon)
            for shard, begin, end in groups:
                if self._rows is not None and shard not in self.shards:
                    block.gather()  # what may be closed and removed while we wait should not be mapped any more
                block.add(self.shards.get(shard, end - begin), begin, end)
            block.gather()
            with decoding:
                block.finish()
        return block

    def _add_few(self, block: Block, grouped: GroupedRows, groups: list[_Group], soon: Soon) -> list[_Group]:
        """Add the rows that are read without their shards, all of them at once; return what is left."""
        few, cost_bytes = self._rows, _cost_of_asking([grouped.rows[begin:end] for _, begin, end in groups])
        far = [
            (shard, begin, end)
            for shard, begin, end in groups
            if few is not None and shard not in self.shards and few.is_worth_it(shard, end - begin, cost_bytes)
        ]
        fetched = {shard for shard, _, _ in far}
        left = [group for group in groups if group[0] not in fetched]
        if few is not None and far:
            wanted = [(shard, grouped.rows[begin:end].copy()) for shard, begin, end in far]
            with self.shards.waiting(), waiting:
                readers = few.open(wanted, _nothing if left else soon.meanwhile)
            for reader, (_, begin, end) in zip(readers, far, strict=True):
                grouped.rows[begin:end] = np.arange(end - begin)  # such a reader has these rows and no others
                block.add(reader, begin, end)
        if left:
            soon.before_shards()
        return left


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
