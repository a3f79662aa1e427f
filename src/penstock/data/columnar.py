"""Columns of several shards → columns of one batch, in the order that was asked for."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from penstock.data.gathered import gathered_column, in_order
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.data.gathered import GatheredColumn, GathersColumns
    from penstock.formats.base import ShardReader
    from penstock.formats.encodings.base import Encoding
    from penstock.types import Columns, Int64Array


class ColumnCollector:
    """Puts together the columns of so many rows, shard by shard.

    Where all shards store their columns alike, stored values are gathered first and decoded together. What is read of
    other shards is decoded shard by shard and joined.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._encodings: dict[str, Encoding] | None = None  # of the shards so far, if they are alike
        self._gathered: dict[str, GatheredColumn] = {}
        self._gathered_at: list[Int64Array] = []
        self._batches: list[tuple[Int64Array, Columns]] = []
        self._joined: Columns = {}

    def add(self, reader: ShardReader, rows: Int64Array, places: Int64Array) -> None:
        """Take some rows of a shard. It may be closed then: what is still looked at stays mapped."""
        encodings = reader.encodings if gathers_columns(reader) else {}
        if self._encodings is None:
            self._encodings = encodings
            self._gathered = {
                name: gathered_column(name, encoding, self._num_rows) for name, encoding in encodings.items()
            }
        elif encodings != self._encodings:
            self._give_up_gathering()
        if self._gathered and gathers_columns(reader):
            self._gathered_at.append(places)
            for column in self._gathered.values():
                column.add(reader, rows, places)
        else:
            self._batches.append((places, reader.read_columns(rows)))

    def finish(self) -> None:
        """All rows are added: decode what was gathered."""
        for column in self._gathered.values():
            column.finish(self._gathered_at)
        self._joined, self._batches = join_batches(self._batches, self._num_rows), []

    def columns(self, begin: int = 0, end: int | None = None) -> Columns:
        """Give the columns of all rows, or of those from one to another."""
        if self._gathered:
            return {name: column.take(begin, end) for name, column in self._gathered.items()}
        return {name: values[begin:end] for name, values in self._joined.items()}

    def _give_up_gathering(self) -> None:
        """Shards that are laid out differently are joined as far as their values allow."""
        if self._gathered:
            places = np.concatenate(self._gathered_at)
            self._batches.append((places, {name: column.so_far(places) for name, column in self._gathered.items()}))
        self._encodings, self._gathered = {}, {}


def gathers_columns(reader: ShardReader) -> TypeGuard[GathersColumns]:
    """Tell whether a reader gives stored values."""
    return hasattr(reader, "gather")


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
