"""Columns of several shards → columns of one batch, in the order that was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import numpy as np

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    import numpy.typing as npt

    from penstock.formats.base import Rows, ShardReader
    from penstock.formats.encodings.base import FixedEncoding
    from penstock.types import Columns, Int64Array


class FillsColumns(Protocol):
    """A shard reader that can put values of fixed size where they belong, without a copy in between."""

    def fixed_columns(self) -> dict[str, FixedEncoding]:
        """Name the columns whose values always have as many bytes."""
        ...

    def fill(self, name: str, rows: Int64Array, places: Int64Array, out: npt.NDArray[Any]) -> None:
        """Put the stored values of such a column at their places in an array of void items."""
        ...

    def read_columns(self, rows: Rows, without: Container[str] = ()) -> Columns:
        """Read the other columns."""
        ...


class ColumnCollector:
    """Puts together the columns of so many rows, shard by shard.

    Values of fixed size go straight to their places; the others are decoded shard by shard and joined in the end.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._encodings: dict[str, FixedEncoding] | None = None  # of the columns that are filled
        self._filled: dict[str, npt.NDArray[Any]] = {}
        self._batches: list[tuple[Int64Array, Columns]] = []

    def add(self, reader: ShardReader, rows: Int64Array, places: Int64Array) -> None:
        """Take some rows of a shard."""
        fixed = reader.fixed_columns() if fills_columns(reader) else {}
        if self._encodings is None:
            self._encodings = fixed
            self._filled = {name: np.empty(self._num_rows, f"V{each.num_bytes}") for name, each in fixed.items()}
        elif self._filled and fixed != self._encodings:
            self._give_up_filling()
        if self._filled and fills_columns(reader):
            for name, out in self._filled.items():
                reader.fill(name, rows, places, out)
            self._batches.append((places, reader.read_columns(rows, without=self._filled)))
        else:
            self._batches.append((places, reader.read_columns(rows)))

    def columns(self) -> Columns:
        """Give the columns of all rows."""
        joined = join_batches(self._batches, self._num_rows)
        encodings = self._encodings or {}
        return {**joined, **{name: encodings[name].to_array(out) for name, out in self._filled.items()}}

    def _give_up_filling(self) -> None:
        """Shards that are laid out differently are joined as far as their values allow."""
        encodings = self._encodings or {}
        for places, columns in self._batches:
            for name, out in self._filled.items():
                columns[name] = encodings[name].to_array(out[places])
        self._filled = {}


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
    items: list[Any] = [None] * num_rows
    for places, values in pieces:
        for place, value in zip(places.tolist(), values, strict=True):
            items[place] = value
    return items
