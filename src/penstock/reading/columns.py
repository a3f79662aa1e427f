"""Rows of several shards → samples, or columns, in the order that was asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from penstock.errors import ConfigError
from penstock.formats.gather import in_order
from penstock.reading.gathered import ColumnGathering, columns_of
from penstock.reading.gathered_rows import RowGathering, gathers_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.formats.base import ShardReader
    from penstock.types import Columns, Int64Array, Sample


T = TypeVar("T")


def begin_gathering(reader: ShardReader, num_rows: int, *, by_sample: bool) -> ColumnGathering | RowGathering | None:
    """Choose how rows are gathered, by the first shard; None: its reader takes no part in that."""
    columns = columns_of(reader)
    if columns is not None:
        return ColumnGathering(columns, num_rows, by_sample=by_sample)
    return RowGathering(reader.parser) if gathers_rows(reader) else None


class _Collector(ABC, Generic[T]):
    """Puts together rows of several shards.

    Where all shards store their columns alike, stored values are gathered first and decoded together; so are rows that
    are parsed alike. What is read of other shards is decoded shard by shard and joined.

    Args:
        rows: Rows of shards, those of one shard side by side.
        places: Where each of them belongs.
    """

    def __init__(self, rows: Int64Array, places: Int64Array, *, by_sample: bool) -> None:
        self._rows, self._places, self._num_rows = rows, places, len(rows)
        self._by_sample = by_sample
        self._gathering: ColumnGathering | RowGathering | None = None
        self._batches: list[tuple[Int64Array, T]] = []

    def add(self, reader: ShardReader, begin: int, end: int) -> None:
        """Take the rows from one to another, which are of this shard."""
        rows, places = self._rows[begin:end], self._places[begin:end]
        if self._gathering is None and not self._batches:
            self._gathering = begin_gathering(reader, self._num_rows, by_sample=self._by_sample)
        if self._gathering is not None:
            if self._gathering.takes(reader):
                self._gathering.add(reader, rows, places)
                return
            self._batches.append(self._so_far(self._gathering))
            self._gathering = None
        self._batches.append((places, self._read(reader, rows)))

    def gather(self) -> None:
        """Copy what was added so far, but for large values: nothing else of its shards stays mapped for it."""
        if self._gathering is not None:
            self._gathering.gather()

    def finish(self) -> None:
        """All rows are added: decode what was gathered."""
        if self._gathering is not None:
            self._gathering.finish()

    @abstractmethod
    def _read(self, reader: ShardReader, rows: Int64Array) -> T: ...

    @abstractmethod
    def _so_far(self, gathering: ColumnGathering | RowGathering) -> tuple[Int64Array, T]: ...


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
        return self._samples[begin:end] if self._gathering is None else self._gathering.samples(begin, end)

    def _read(self, reader: ShardReader, rows: Int64Array) -> list[Sample]:
        return reader.read(rows)

    def _so_far(self, gathering: ColumnGathering | RowGathering) -> tuple[Int64Array, list[Sample]]:
        return gathering.samples_so_far()


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
            return self._gathering.columns(begin, end)
        return {name: values[begin:end] for name, values in self._joined.items()}

    def _read(self, reader: ShardReader, rows: Int64Array) -> Columns:
        return reader.read_columns(rows)

    def _so_far(self, gathering: ColumnGathering | RowGathering) -> tuple[Int64Array, Columns]:
        return gathering.columns_so_far()


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
