"""Columns of several shards → columns of one batch, in the order that was asked for."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import numpy as np

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.formats.base import ShardReader
    from penstock.formats.encodings.base import FixedEncoding
    from penstock.types import Columns, Int64Array


# For values this large, copying costs more than a step of Python each: they are copied once, in the order of the batch.
_LARGE_VALUE_BYTES = 2048


class FillsColumns(Protocol):
    """A shard reader that can put values of fixed size where they belong, without a copy in between."""

    def fixed_columns(self) -> dict[str, FixedEncoding]:
        """Name the columns whose values always have as many bytes."""
        ...

    def fill(self, name: str, rows: Int64Array, places: Int64Array, out: npt.NDArray[Any]) -> None:
        """Put the stored values of such a column at their places in an array of void items."""
        ...

    def locate(self, name: str, rows: Int64Array) -> tuple[memoryview, Int64Array]:
        """Say where the stored values of such a column lie: in which bytes, and where each begins."""
        ...

    def read_others(self, rows: Int64Array) -> Columns:
        """Read the other columns."""
        ...


class Whereabouts:
    """Where the values of a column lie, each of so many bytes, until they are copied."""

    def __init__(self, num_rows: int, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._sources: list[memoryview] = []
        self._source_of = np.zeros(num_rows, np.int64)
        self._begins = np.zeros(num_rows, np.int64)

    def add(self, places: Int64Array, source: memoryview, begins: Int64Array) -> None:
        """Note where the values at some places lie."""
        self._source_of[places] = len(self._sources)
        self._begins[places] = begins
        self._sources.append(source)

    def copy(self, begin: int, end: int | None) -> npt.NDArray[Any]:
        """Copy values that lie anywhere into one array of void items."""
        begins, sources = self._begins[begin:end], self._sources
        ends = begins + self._num_bytes
        pieces = [
            sources[source][first:last]
            for source, first, last in zip(
                self._source_of[begin:end].tolist(), begins.tolist(), ends.tolist(), strict=True
            )
        ]
        return np.frombuffer(bytearray().join(pieces), f"V{self._num_bytes}")


class ColumnCollector:
    """Puts together the columns of so many rows, shard by shard.

    Small values of fixed size go straight to their places. Of large ones it remembers where they lie: they are copied
    when their batch is asked for. The others are decoded shard by shard and joined.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._encodings: dict[str, FixedEncoding] | None = None  # of the columns that are not decoded
        self._filled: dict[str, npt.NDArray[Any]] = {}
        self._located: dict[str, Whereabouts] = {}
        self._batches: list[tuple[Int64Array, Columns]] = []
        self._joined: Columns | None = None

    def add(self, reader: ShardReader, rows: Int64Array, places: Int64Array) -> None:
        """Take some rows of a shard. It may be closed then: what is still looked at stays mapped."""
        fixed = reader.fixed_columns() if fills_columns(reader) else {}
        if self._encodings is None:
            self._begin(fixed)
        elif self._encodings and fixed != self._encodings:
            self._give_up_filling()
        if not self._encodings or not fills_columns(reader):
            self._batches.append((places, reader.read_columns(rows)))
            return
        for name, out in self._filled.items():
            reader.fill(name, rows, places, out)
        for name, whereabouts in self._located.items():
            whereabouts.add(places, *reader.locate(name, rows))
        self._batches.append((places, reader.read_others(rows)))

    def columns(self, begin: int = 0, end: int | None = None) -> Columns:
        """Give the columns of all rows, or of those from one to another, once all are added."""
        if self._joined is None:
            self._joined, self._batches = join_batches(self._batches, self._num_rows), []
        columns = {name: values[begin:end] for name, values in self._joined.items()}
        for name, encoding in (self._encodings or {}).items():
            columns[name] = encoding.to_array(self._stored(name, begin, end))
        return columns

    def _begin(self, fixed: dict[str, FixedEncoding]) -> None:
        self._encodings = fixed
        for name, encoding in fixed.items():
            if encoding.num_bytes >= _LARGE_VALUE_BYTES:
                self._located[name] = Whereabouts(self._num_rows, encoding.num_bytes)
            else:
                self._filled[name] = np.empty(self._num_rows, f"V{encoding.num_bytes}")

    def _stored(self, name: str, begin: int = 0, end: int | None = None) -> npt.NDArray[Any]:
        """Give stored values of a column in their order; those that were not added yet are anything."""
        if name in self._filled:
            return self._filled[name][begin:end]
        return self._located[name].copy(begin, end)

    def _give_up_filling(self) -> None:
        """Shards that are laid out differently are joined as far as their values allow."""
        for name, encoding in (self._encodings or {}).items():
            values = encoding.to_array(self._stored(name))
            for places, columns in self._batches:
                columns[name] = values[places]
        self._encodings, self._filled, self._located = {}, {}, {}


def fills_columns(reader: ShardReader) -> TypeGuard[FillsColumns]:
    """Tell whether a reader can put values where they belong."""
    return hasattr(reader, "fill")


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


def in_order(items: list[Any], places: Sequence[Int64Array]) -> list[Any]:
    """Put items that were gathered group by group at their places."""
    if not items:
        return items
    numbers = np.empty(len(items), dtype=np.int64)
    numbers[np.concatenate(places)] = np.arange(len(items))
    return list(map(items.__getitem__, numbers.tolist()))
