"""Rows of several shards → samples, or columns, in the order that was asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from penstock.errors import ConfigError
from penstock.formats.rows import join_columns
from penstock.reading.gathered import Gathering, in_order, stores_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.formats.base import ShardReader
    from penstock.types import Columns, Int64Array, Sample

T = TypeVar("T")


class _Collector(ABC, Generic[T]):
    """Puts together rows of shard after shard.

    Where all shards store their columns alike, stored values are gathered first and decoded together. What is read of
    other shards is decoded shard by shard and joined.
    """

    def __init__(self, num_rows: int, *, by_sample: bool) -> None:
        self._num_rows, self._by_sample = num_rows, by_sample
        self._gathering: Gathering | None = None
        self._batches: list[tuple[Int64Array, T]] = []

    def add(self, reader: ShardReader, rows: Int64Array, places: Int64Array) -> None:
        """Take some rows of a shard, which belong to these places."""
        if stores_rows(reader):
            if self._gathering is None and not self._batches:
                self._gathering = Gathering(reader.layout, self._num_rows, by_sample=self._by_sample)
            if self._gathering is not None and self._gathering.takes(reader):
                self._gathering.add(reader, rows, places)
                return
        if self._gathering is not None:
            before, columns = self._gathering.so_far()
            self._batches.append((before, self._join_columns(columns, len(before))))
            self._gathering = None
        self._batches.append((places, self._read(reader, rows)))

    def gather(self) -> None:
        """Copy what was added so far, but for large values: its shards may stay away for long."""
        if self._gathering is not None:
            self._gathering.gather()

    def finish(self) -> None:
        """All rows are added: decode what was gathered."""
        if self._gathering is not None:
            self._gathering.finish()

    @abstractmethod
    def _read(self, reader: ShardReader, rows: Int64Array) -> T: ...

    @abstractmethod
    def _join_columns(self, columns: Columns, num_rows: int) -> T: ...


class SampleCollector(_Collector[list["Sample"]]):
    """Puts samples together."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(num_rows, by_sample=True)

    def samples(self) -> list[Sample]:
        """Give all samples."""
        if self._gathering is not None:
            return self._join_columns(self._gathering.take(), self._num_rows)
        together = list(chain.from_iterable(samples for _, samples in self._batches))
        return in_order(together, [places for places, _ in self._batches])

    def _read(self, reader: ShardReader, rows: Int64Array) -> list[Sample]:
        return reader.read(rows)

    def _join_columns(self, columns: Columns, num_rows: int) -> list[Sample]:
        return join_columns(tuple(columns), list(columns.values()), num_rows)


class ColumnCollector(_Collector["Columns"]):
    """Puts columns together, to be cut into batches."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(num_rows, by_sample=False)
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
