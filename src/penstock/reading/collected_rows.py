"""Ids → blocks: whatever lies in one shard is read together, and taken some at a time."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from penstock.errors import ConfigError
from penstock.formats.gather import StoresRows, in_order
from penstock.thread_times import decoding, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    import numpy.typing as npt

    from penstock.formats.base import Rows, ShardReader
    from penstock.formats.gather import Gathering, RowLayout
    from penstock.order.id_spans import IdSpans
    from penstock.reading.open_shards import OpenShards
    from penstock.reading.source import RowReader
    from penstock.types import Columns, Int64Array, Sample

    _Group: TypeAlias = tuple[int, int, int]  # a shard, and which of the grouped rows are its own


class CollectedRows:
    """Rows of several shards, as samples or as columns.

    Where all shards store their rows alike, these are gathered as they are stored and decoded together; samples are
    made of the columns when they are taken. What is read of other shards is decoded shard by shard and joined.

    Args:
        rows: Rows of shards, those of one shard side by side.
        places: Where each of them belongs.
        by_column: Take columns, not samples.
    """

    _gathering: Gathering | None = None
    _class: type[StoresRows] | None = None  # of the readers whose rows are gathered
    _layout: RowLayout | None = None

    def __init__(self, rows: Int64Array, places: Int64Array, *, by_column: bool) -> None:
        self._rows, self._places, self._num_rows = rows, places, len(rows)
        self._by_column = by_column
        self._batches: list[tuple[Int64Array, Any]] = []
        self._joined: Any = None

    @classmethod
    def of_one_shard(cls, reader: ShardReader, rows: Rows, *, by_column: bool) -> CollectedRows:
        """Read rows of one shard, in this order: for a few of them, it knows a shorter way."""
        block = cls(_NO_ROWS, _NO_ROWS, by_column=by_column)
        block._joined = reader.read_columns(rows) if by_column else reader.read(rows)
        return block

    def add(self, reader: ShardReader, begin: int, end: int) -> None:
        """Take the rows from one to another, which are of this shard."""
        rows, places = self._rows[begin:end], self._places[begin:end]
        if self._gathering is None and not self._batches and _stores_rows(type(reader)):
            begun = cast("StoresRows", reader)
            self._class, self._layout = type(begun), begun.row_layout()
            self._gathering = self._layout.begin(self._num_rows, by_column=self._by_column)
        if self._gathering is not None:
            stored: Any = reader
            layout = stored.row_layout() if type(stored) is self._class else None
            if layout is not None and (layout is self._layout or layout == self._layout):
                self._gathering.add(reader, rows, places)
                return
            self._batches.append(self._gathering.so_far())
            self._gathering = None
        self._batches.append((places, reader.read_columns(rows) if self._by_column else reader.read(rows)))

    def gather(self) -> None:
        """Copy what was added so far, but for large values: nothing else of its shards stays mapped for it."""
        if self._gathering is not None:
            self._gathering.gather()

    def finish(self) -> None:
        """All rows are added: decode what was gathered, put the rest in order."""
        if self._gathering is not None:
            self._gathering.finish()
        elif self._by_column:
            self._joined = join_batches(self._batches, self._num_rows)
        else:
            samples = list(chain.from_iterable(samples for _, samples in self._batches))
            self._joined = in_order(samples, [places for places, _ in self._batches])
        self._batches = []

    def samples(self, begin: int = 0, end: int | None = None) -> list[Sample]:
        """Return all samples, or those from one to another, which are decoded now if they were gathered."""
        if self._gathering is not None:
            with decoding:
                gathered: list[Sample] = self._gathering.take(begin, end)
                return gathered
        samples: list[Sample] = self._joined
        if begin or (end is not None and end < len(samples)):
            return samples[begin:end]
        self._joined = []  # what takes them all lets go of each when it is done with it
        return samples

    def columns(self, begin: int = 0, end: int | None = None) -> Columns:
        """Return the columns of all rows, or of those from one to another."""
        if self._gathering is not None:
            gathered: Columns = self._gathering.take(begin, end)
            return gathered
        joined: Columns = self._joined
        if not begin and end is None:
            return joined
        return {name: values[begin:end] for name, values in joined.items()}


_NO_ROWS = np.zeros(0, np.int64)
_NO_WAIT = nullcontext()


@lru_cache(maxsize=256)
def _stores_rows(reader_class: type) -> bool:
    """Return whether readers of a class are gathered; asked once, for to look at a Protocol takes a while."""
    return issubclass(reader_class, StoresRows)


def join_batches(batches: Sequence[tuple[Int64Array, Columns]], num_rows: int) -> Columns:
    """Put the columns of each batch at its places among `num_rows` rows.

    A column is an array if it is one in every batch, of one dtype and one shape; else it is a list.
    """
    if len(batches) == 1:
        places, columns = batches[0]
        if np.array_equal(places, np.arange(num_rows)):
            return columns
    names = batches[0][1].keys() if batches else {}
    if any(columns.keys() != names for _, columns in batches):
        all_names = set().union(*(columns for _, columns in batches))
        common = sorted(all_names.intersection(*(columns for _, columns in batches)))
        raise ConfigError(
            f"the shards have different columns: read the ones that all of them have, with columns={common}, or"
            " read samples instead of columns"
        )
    return {name: _join([(places, columns[name]) for places, columns in batches], num_rows) for name in names}


def _join(pieces: list[tuple[Int64Array, npt.NDArray[Any] | list[Any]]], num_rows: int) -> npt.NDArray[Any] | list[Any]:
    arrays = [values for _, values in pieces if isinstance(values, np.ndarray)]
    if len(arrays) == len(pieces) and len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
        out = np.empty((num_rows, *arrays[0].shape[1:]), arrays[0].dtype)
        for places, values in pieces:
            out[places] = values
        return out
    return in_order(list(chain.from_iterable(values for _, values in pieces)), [places for places, _ in pieces])


# --- Reading blocks --------------------------------------------------------------------------------------------------


def _nothing() -> None:
    """Do nothing, around what is read."""


# A hundred requests take little longer than one. Of more, each takes as long as many bytes on a good network.
_FEW_REQUESTS = 100
_COST_OF_FEW_BYTES = 8 << 10
_COST_OF_MANY_BYTES = 96 << 10


class Soon(NamedTuple):
    """Rows that are wanted soon or seldom: of shards from far away, maybe only their bytes are fetched."""

    before_shards: Callable[[], None] = _nothing  # called once those bytes are here, if shards are waited for, too
    meanwhile: Callable[[], None] = _nothing  # if not, it may be called while those bytes come


SOON = Soon()


class BatchReader:
    """Reads samples by id, in the order asked for, from the shards that hold them."""

    def __init__(
        self,
        spans: IdSpans,
        shards: OpenShards,
        rows: RowReader | None = None,
        stored: Callable[[range | Int64Array], Int64Array] | None = None,
    ) -> None:
        self.spans, self.shards = spans, shards
        self._rows, self._stored = rows, stored

    def stored(self, ids: range | Int64Array) -> range | Int64Array:
        """Return the numbers of samples among all rows of the shards: of a view, they are others than their ids."""
        return ids if self._stored is None else self._stored(ids)

    def read_one(self, sample_id: int) -> Sample:
        """Return one sample, whose id is in range; from far away, maybe only its bytes are fetched."""
        if self._stored is not None:
            sample_id = int(self._stored(range(sample_id, sample_id + 1))[0])
        shard = self.spans.shard_of(sample_id)
        row = sample_id - int(self.spans.starts[shard])
        with self.shards:
            if self._rows is not None and shard not in self.shards and self._rows.is_worth_it(shard, 1, 0):
                with self.shards.waiting(), waiting:
                    [reader] = self._rows.open([(shard, np.array([row]))], _nothing)
                return reader.read([0])[0]
            return self.shards.get(shard).read([row])[0]

    def read(
        self, ids: range | Int64Array, soon: Soon | None = None, *, by_column: bool = False, is_cut: bool = False
    ) -> CollectedRows:
        """Read samples, to be taken some at a time, or columns: each an array where the values allow it, else a list.

        Samples of one shard are decoded already. Where columns are cut into batches (`is_cut`), large values are copied
        when their batch is taken.
        """
        ids = self.stored(ids)
        if soon is not None and self._rows is None:
            soon.before_shards()
            soon = None
        alone = within_one_shard(ids, self.spans) if soon is None and not is_cut else None
        if alone is not None:
            shard, rows = alone
            with self.shards:
                return CollectedRows.of_one_shard(self.shards.get(shard, len(rows)), rows, by_column=by_column)
        grouped = group_by_shard(np.asarray(ids, np.int64), self.spans)
        block = CollectedRows(grouped.rows, grouped.places, by_column=by_column)
        groups = list(grouped)
        with self.shards, self._one_wait():
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

    def _one_wait(self) -> AbstractContextManager[Any]:
        """Have the user told of all that is waited for as of one thing."""
        if self._rows is None:
            return _NO_WAIT
        from penstock.cache.progress import single_progress_line  # what is here already waits for nothing

        return single_progress_line()

    def _add_few(self, block: CollectedRows, grouped: GroupedRows, groups: list[_Group], soon: Soon) -> list[_Group]:
        """Add the rows that are read without their shards, all of them at once; return what is left."""
        # How long it takes to ask for the rows of a shard, in bytes that could be read instead, follows from the number
        # of requests: rows that follow each other are one.
        num_requests = sum(1 + int(np.count_nonzero(np.diff(grouped.rows[begin:end]) > 1)) for _, begin, end in groups)
        cost_of_one = _COST_OF_FEW_BYTES if num_requests <= _FEW_REQUESTS else _COST_OF_MANY_BYTES
        cost_bytes = cost_of_one * num_requests / len(groups)
        few = self._rows
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


def within_one_shard(ids: range | Int64Array, spans: IdSpans) -> tuple[int, Rows] | None:
    """Return the shard and the rows if all ids lie in one shard, which then needs no sorting out."""
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
        """Return for each shard its number, and where its rows begin and end."""
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
