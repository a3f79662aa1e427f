"""Rows of Arrow's record batches: as columns where their types allow it, else as samples."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.formats.columnar.arrow_types import number_dtype, pyarrow
from penstock.formats.columnar.nodes import with_none
from penstock.formats.rows import join_columns
from penstock.sources.columns import ColumnarRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from typing_extensions import Self

    from penstock.sources.columns import FieldValues, Rows
    from penstock.types import Int64Array, Sample

    # For each column: the type of the numbers in its lists, or None if it does not hold lists.
    ListTypes = tuple[np.dtype[Any] | None, ...]


def rows_of(batch: Any, condition: Any = None, columns: Sequence[str] | None = None) -> Rows:
    """Give the rows of a record batch that fit a condition, and some of its columns; lists of numbers are arrays."""
    if condition is not None:
        table = pyarrow().Table.from_batches([batch]).filter(condition).combine_chunks()
        found = table.to_batches()
        if not found:
            return []
        [batch] = found
    if columns is not None and list(columns) != batch.schema.names:
        batch = batch.select(list(columns))
    list_types = _list_types(batch.schema)
    if list_types is not None and batch.num_rows:
        arrays = [_as_kept(batch.column(number), kind) for number, kind in enumerate(list_types)]
        if all(array is not None for array in arrays):
            return ArrowRows(pyarrow().Table.from_arrays(arrays, names=batch.schema.names), list_types)
    return join_columns(
        tuple(batch.schema.names), [_values(batch.column(n)) for n in range(batch.num_columns)], batch.num_rows
    )


class ArrowRows(ColumnarRows):
    """Rows as a table of Arrow. A list of numbers is kept as its bytes: these are copied as one, not number by number.

    All that varies in length has offsets of 64 bits, so that any amount of rows can be joined.
    """

    __slots__ = ("_list_types", "_table")

    def __init__(self, table: Any, list_types: ListTypes) -> None:
        self._table, self._list_types = table, list_types

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def cut(self, begin: int, end: int) -> Self:
        """Give the rows from one on, up to another."""
        return type(self)(self._table.slice(begin, end - begin), self._list_types)

    def pick(self, places: Int64Array) -> Self:
        """Give copies of the rows at these places."""
        return type(self)(self._table.take(pyarrow().array(places)), self._list_types)

    def join(self, following: Sequence[ColumnarRows]) -> Self | None:
        """Give these rows and the following ones together, if all have the same columns."""
        tables = [self._table]
        for each in following:
            if type(each) is not type(self) or each._list_types != self._list_types:
                return None
            if not each._table.schema.equals(self._table.schema):
                return None
            tables.append(each._table)
        return type(self)(pyarrow().concat_tables(tables), self._list_types)

    def samples(self) -> list[Sample]:
        """Make samples."""
        return join_columns(
            tuple(self._table.column_names),
            [
                column.to_pylist() if kind is None else _lists(column, kind)
                for column, kind in zip(self._table.columns, self._list_types, strict=True)
            ],
            len(self),
        )

    def columns(self) -> dict[str, FieldValues]:
        """Give the values of each field, in arrays that may be changed."""
        return {
            name: _numbers(column) if kind is None else _stacked(column, kind)
            for name, column, kind in zip(self._table.column_names, self._table.columns, self._list_types, strict=True)
        }


@lru_cache(maxsize=256)
def _list_types(schema: Any) -> ListTypes | None:
    """Tell how columns are kept; None if one of them has a type for which only samples will do."""
    if len(set(schema.names)) < len(schema.names) or not schema.names:
        return None
    kinds: list[np.dtype[Any] | None] = []
    for field in schema:
        number = _number_in_list(field.type)
        if number is None and not _is_plain(field.type):
            return None
        kinds.append(None if number is None else number_dtype(number))
    return tuple(kinds)


def _is_plain(kind: Any) -> bool:
    types = pyarrow().types
    return bool(
        _is_number(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def _is_number(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind))


def _number_in_list(kind: Any) -> Any:
    """Give the type of the numbers, if it is one of lists of numbers."""
    types = pyarrow().types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        value = kind.value_type
        return value if _is_number(value) or types.is_boolean(value) or types.is_float16(value) else None
    return None


def _as_kept(column: Any, list_type: np.dtype[Any] | None) -> Any:
    """Return a column as it is kept, or None if a list is null, or an integer in one: no array has a value for that."""
    pa = pyarrow()
    if list_type is None:
        wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(column.type)
        return column if wide is None else _widen(column, wide)
    if column.null_count:
        return None
    bounds, values = _bounds_and_values(column)
    if values.null_count and list_type.kind != "f":
        return None
    numbers = values.to_numpy(zero_copy_only=False)
    return pa.Array.from_buffers(
        pa.large_binary(),
        len(column),
        [None, pa.py_buffer(bounds * list_type.itemsize), pa.py_buffer(numbers)],
    )


def _widen(column: Any, wide: Any) -> Any:
    """Give text or bytes with offsets of 64 bits, and the same data; a cast would look at all of it."""
    if column.null_count:
        return column.cast(wide)
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    return pyarrow().Array.from_buffers(wide, len(column), [None, pyarrow().py_buffer(bounds), data])


def _bounds_and_values(column: Any) -> tuple[Int64Array, Any]:
    """Return where each list begins and where the last one ends in the numbers of all, and these."""
    if pyarrow().types.is_fixed_size_list(column.type):
        bounds = np.arange(column.offset, column.offset + len(column) + 1, dtype=np.int64) * column.type.list_size
    else:
        bounds = column.offsets.to_numpy().astype(np.int64)
    return bounds - bounds[0], column.values.slice(bounds[0], bounds[-1] - bounds[0])


def _values(column: Any) -> list[Any]:
    """Give the values of a column as they are in samples."""
    number = _number_in_list(column.type)
    if number is None:
        listed: list[Any] = column.to_pylist()
        return listed
    bounds, values = _bounds_and_values(column)
    kind = number_dtype(number)
    is_filled = kind.kind != "f" and values.null_count
    filled = values.fill_null(kind.type(0).item()) if is_filled else values
    numbers = np.array(filled.to_numpy(zero_copy_only=False), kind)
    lists: list[Any] = [numbers[low:high] for low, high in pairwise(bounds.tolist())]
    if is_filled:  # an array with a gap is one of objects
        for place, (low, high) in enumerate(pairwise(bounds.tolist())):
            own = values.slice(low, high - low)
            lists[place] = np.array(own.to_pylist(), object) if own.null_count else lists[place]
    return with_none(lists, column.is_null().to_numpy(zero_copy_only=False))


def _bytes_of(column: Any) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
    """Give the bounds of all values of a column of bytes, and the bytes from the first to the last, as a copy."""
    bounds, parts, before = [np.zeros(1, np.int64)], [], 0
    for chunk in column.chunks:
        _, offsets, data = chunk.buffers()
        ends = np.frombuffer(offsets, np.int64, len(chunk) + 1, 8 * chunk.offset)
        first, last = int(ends[0]), int(ends[-1])
        if last > first:
            parts.append(np.frombuffer(data, np.uint8, last - first, first))
        bounds.append(ends[1:] - first + before)
        before += last - first
    return np.concatenate(bounds), np.concatenate(parts) if parts else np.empty(0, np.uint8)


def _lists(column: Any, kind: np.dtype[Any]) -> list[Any]:
    bounds, data = _bytes_of(column)
    numbers = data.view(kind)
    return [numbers[low:high] for low, high in pairwise((bounds // kind.itemsize).tolist())]


def _stacked(column: Any, kind: np.dtype[Any]) -> FieldValues:
    """Give lists of numbers as one array if they are equally long."""
    bounds, data = _bytes_of(column)
    lengths = np.diff(bounds)
    numbers = data.view(kind)
    if len(lengths) and (lengths == lengths[0]).all():
        return numbers.reshape(len(lengths), int(lengths[0]) // kind.itemsize)
    return [numbers[low:high] for low, high in pairwise((bounds // kind.itemsize).tolist())]


def _numbers(column: Any) -> FieldValues:
    """Give numbers as an array of what they are in samples: integers and floats of Python."""
    types, kind = pyarrow().types, column.type
    if column.null_count or types.is_uint64(kind) or not (_is_number(kind) or types.is_boolean(kind)):
        values: list[Any] = column.to_pylist()
        return values
    numbers = np.concatenate([chunk.to_numpy(zero_copy_only=False) for chunk in column.chunks])
    if numbers.dtype.kind == "b":
        return numbers
    return numbers.astype(np.int64 if numbers.dtype.kind in "iu" else np.float64, copy=False)
