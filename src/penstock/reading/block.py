"""Rows of several shards, in the order that was asked for: read together, and taken some at a time."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.errors import ConfigError
from penstock.formats.gather import in_order
from penstock.formats.gathered import StoresRows
from penstock.thread_times import decoding

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.formats.base import Rows, ShardReader
    from penstock.formats.gathered import Gathering, RowLayout
    from penstock.types import Columns, Int64Array, Sample


class Block:
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
    def of_one_shard(cls, reader: ShardReader, rows: Rows, *, by_column: bool) -> Block:
        """Read rows of one shard, in this order: for a few of them, it knows a shorter way."""
        block = cls(_NO_ROWS, _NO_ROWS, by_column=by_column)
        block._joined = reader.read_columns(rows) if by_column else reader.read(rows)
        return block

    def add(self, reader: ShardReader, begin: int, end: int) -> None:
        """Take the rows from one to another, which are of this shard."""
        rows, places = self._rows[begin:end], self._places[begin:end]
        if self._gathering is None and not self._batches and _stores_rows(type(reader)):
            self._gathering = self._begin(cast("StoresRows", reader))
        if self._gathering is not None:
            if self._is_stored_alike(reader):
                self._gathering.add(reader, rows, places)
                return
            self._batches.append(self._gathering.so_far())
            self._gathering = None
        self._batches.append((places, reader.read_columns(rows) if self._by_column else reader.read(rows)))

    def _begin(self, reader: StoresRows) -> Gathering:
        self._class, self._layout = type(reader), reader.row_layout()
        return self._layout.begin(self._num_rows, by_column=self._by_column)

    def _is_stored_alike(self, reader: Any) -> bool:
        if type(reader) is not self._class:
            return False
        layout = reader.row_layout()
        return layout is self._layout or bool(layout == self._layout)

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
        return {name: values[begin:end] for name, values in self._joined.items()}


_NO_ROWS = np.zeros(0, np.int64)


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
