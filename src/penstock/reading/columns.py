"""Rows of several shards → samples, or columns, in the order that was asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from penstock.errors import ConfigError
from penstock.formats.rows import join_columns
from penstock.reading.gathered import Gathering, in_order, stores_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.formats.base import ShardReader
    from penstock.formats.stored_rows import ShardMemory
    from penstock.reading.gathered import StoresRows
    from penstock.types import Columns, Int64Array, Sample

T = TypeVar("T")


# Samples that are still in the processor's cache are collated, and freed, in half the time.
SAMPLES_AT_ONCE = 2048


class _Collector(ABC, Generic[T]):
    """Puts together rows of several shards.

    Where all shards store their columns alike, stored values are gathered first and decoded together. What is read of
    other shards is decoded shard by shard and joined.

    Args:
        rows: Rows of shards, those of one shard side by side.
        places: Where each of them belongs.
    """

    def __init__(self, rows: Int64Array, places: Int64Array, *, by_sample: bool) -> None:
        self._rows, self._places, self._num_rows = rows, places, len(rows)
        self._by_sample = by_sample
        self._gathering: Gathering | None = None
        self._batches: list[tuple[Int64Array, T]] = []
        # What was added and not gathered yet: shards, their numbers of rows, and where these are among the rows.
        self._last: StoresRows | None = None
        self._shards: list[ShardMemory] = []
        self._counts: list[int] = []
        self._begin = self._end = 0

    def add(self, reader: ShardReader, begin: int, end: int) -> None:
        """Take the rows from one to another, which are of this shard."""
        if stores_rows(reader):
            if self._gathering is None and not self._batches:
                self._gathering = Gathering(reader.layout, self._num_rows, by_sample=self._by_sample)
            if self._gathering is not None and self._gathering.takes(reader):
                if begin != self._end:
                    self.gather()
                    self._begin = begin
                self._shards.append(reader.memory())
                self._counts.append(end - begin)
                self._end, self._last = end, reader
                return
        self.gather()
        if self._gathering is not None:
            before, columns = self._gathering.so_far()
            self._batches.append((before, self._join_columns(columns, len(before))))
            self._gathering = None
        self._batches.append((self._places[begin:end], self._read(reader, self._rows[begin:end])))

    def gather(self) -> None:
        """Copy what was added so far, but for large values: nothing else of its shards stays mapped for it."""
        if self._gathering is not None and self._shards:
            some = slice(self._begin, self._end)
            if len(self._shards) == 1 and self._last is not None and len(self._last):  # it is still open
                self._gathering.add_rows(self._last, self._rows[some], self._places[some])
            else:
                self._gathering.add(self._shards, self._counts, self._rows[some], self._places[some])
            self._shards, self._counts, self._begin, self._last = [], [], self._end, None

    def finish(self) -> None:
        """All rows are added: decode what was gathered."""
        if self._gathering is not None:
            self._gathering.finish()

    @abstractmethod
    def _read(self, reader: ShardReader, rows: Int64Array) -> T: ...

    @abstractmethod
    def _join_columns(self, columns: Columns, num_rows: int) -> T: ...


class CollectedSamples(Protocol):
    """Samples that were read, to be taken once, some at a time."""

    def samples(self, begin: int = 0, end: int | None = None) -> list[Sample]:
        """Give all samples, or those from one to another."""
        ...


class ReadSamples:
    """Samples that are decoded already."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def samples(self, begin: int = 0, end: int | None = None) -> list[Sample]:
        """Give all samples, or those from one to another."""
        if begin == 0 and (end is None or end >= len(self._samples)):
            samples, self._samples = self._samples, []  # whoever takes them all lets go of them when he is done
            return samples
        return self._samples[begin:end]


class SampleCollector(_Collector[list["Sample"]]):
    """Puts samples together."""

    def __init__(self, rows: Int64Array, places: Int64Array) -> None:
        super().__init__(rows, places, by_sample=True)
        self._samples: list[Sample] = []

    def finish(self) -> None:
        """All rows are added: put in order what was not gathered."""
        super().finish()
        together = list(chain.from_iterable(samples for _, samples in self._batches))
        self._samples = in_order(together, [places for places, _ in self._batches])

    def samples(self, begin: int = 0, end: int | None = None) -> list[Sample]:
        """Give all samples, or those from one to another, which are decoded now."""
        if self._gathering is None:
            return self._samples[begin:end]
        end = self._num_rows if end is None else end
        samples: list[Sample] = []
        for first in range(begin, end, SAMPLES_AT_ONCE):
            last = min(first + SAMPLES_AT_ONCE, end)
            samples += self._join_columns(self._gathering.take(first, last), last - first)
        return samples

    def _read(self, reader: ShardReader, rows: Int64Array) -> list[Sample]:
        return reader.read(rows)

    def _join_columns(self, columns: Columns, num_rows: int) -> list[Sample]:
        return join_columns(tuple(columns), list(columns.values()), num_rows)


class ColumnCollector(_Collector["Columns"]):
    """Puts columns together, to be cut into batches."""

    def __init__(self, rows: Int64Array, places: Int64Array) -> None:
        super().__init__(rows, places, by_sample=False)
        self._joined: Columns = {}

    def finish(self) -> None:
        """All rows are added: decode what was gathered, join the rest."""
        super().finish()
        self._joined, self._batches = join_batches(self._batches, self._num_rows), []

    def columns(self, begin: int = 0, end: int | None = None) -> Columns:
        """Give the columns of all rows, or of those from one to another."""
        if self._gathering is not None:
            return self._gathering.take(begin, end)
        return {name: values[begin:end] for name, values in self._joined.items()}

    def _read(self, reader: ShardReader, rows: Int64Array) -> Columns:
        return reader.read_columns(rows)

    def _join_columns(self, columns: Columns, num_rows: int) -> Columns:  # noqa: ARG002
        return columns


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
            f"the shards have different columns: read those that all of them have with columns={common}, or by sample"
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
