"""Columns with others within them: lists, structs, maps, and values that stand in a dictionary."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.blocks.block import join_columns
from penstock.formats.columnar.nodes import ANY_LENGTH, ArrayNode, Node, ValueBuffers, check_offsets, with_none
from penstock.formats.columnar.types import array_dtype, element_shape, has_array_elements, missing_value
from penstock.formats.gather import as_list

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.formats.columnar.nodes import BoolArray, BufferFile
    from penstock.formats.columnar.types import ColumnType
    from penstock.formats.gather import StoredValues
    from penstock.types import Int64Array

_INDEX_KINDS = ("|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8")


class _OffsetsNode(Node):
    """Rows that are runs of child rows."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, num_children: int) -> None:
        super().__init__(kind, file, path)
        self._offsets = self._array(file, path, "offsets", ("<i4", "<i8"))
        self.length = min(self.length, len(self._offsets) - 1)
        self._num_children, self._is_checked = num_children, False

    def _bounds(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        if not self._is_checked:
            check_offsets(self._offsets, self._num_children, self)
            self._is_checked = True
        return self._offsets[rows].astype(np.int64), self._offsets[rows + 1].astype(np.int64)

    def _elements(self, rows: Int64Array) -> tuple[Int64Array, list[int]]:
        """Return all child rows of some rows, and where those of each begin and end among them."""
        begins, ends = self._bounds(rows)
        is_null = self.is_null(rows)
        if is_null is not None:
            ends = np.where(is_null, begins, ends)  # it may have elements, which nobody is to see
        sizes = ends - begins
        cuts = np.concatenate([[0], np.cumsum(sizes)])
        elements = np.arange(cuts[-1]) + np.repeat(begins - cuts[:-1], sizes)
        return elements, cuts.tolist()


class ListNode(_OffsetsNode):
    """Lists of any length."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, child: Node) -> None:
        super().__init__(kind, file, path, child.length)
        self._child = child
        self._bytes = _bytes_of(child.block)
        if self._bytes is not None and child.buffers is not None:
            data, num_bytes = child.buffers.data, child.buffers.num_bytes
            offsets = file.place_of(f"{path}.offsets"), self._offsets.itemsize
            self.buffers = ValueBuffers(data, num_bytes, self._bytes[1], *offsets, self._validity_place)

    def arrays(self, rows: Int64Array) -> list[Any]:
        """Return an array for each list."""
        if self._bytes is None:
            elements, cuts = self._elements(rows)
            return with_none(_cut_arrays(self._child, elements, cuts), self.is_null(rows))
        data, size = self._bytes
        begins, ends = self._bounds(rows)
        bounds = zip((begins * size).tolist(), (ends * size).tolist(), strict=True)
        return with_none([data[begin:end] for begin, end in bounds], self.is_null(rows))

    def values(self, rows: Int64Array) -> list[Any]:
        """Return a copy of each array; lists of what is no number."""
        if has_array_elements(self.kind):
            return to_arrays(self.kind, self.arrays(rows))
        elements, cuts = self._elements(rows)
        flat = self._child.values(elements)
        return with_none([flat[begin:end] for begin, end in pairwise(cuts)], self.is_null(rows))


class FixedListNode(ArrayNode):
    """Lists of one length."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, child: Node) -> None:
        super().__init__(kind, file, path)
        self._child, self._size = child, kind.settings[0]
        if self._size and child.length != ANY_LENGTH:
            self.length = min(self.length, child.length // self._size)
        self._bytes = _bytes_of(child.block)
        if child.block is not None and child.buffers is not None and self._size:
            item_bytes = self._size * child.buffers.item_bytes
            self.buffers = child.buffers._replace(item_bytes=item_bytes, validity=self._validity_place)
            end = len(child.block) // self._size * self._size
            block = child.block[:end].reshape(-1, self._size, *child.block.shape[1:])
            self.block = block if self._validity is None else None

    def arrays(self, rows: Int64Array) -> list[Any]:
        """Return an array for each list."""
        if self._bytes is not None:
            data, size = self._bytes
            size *= self._size
            arrays: list[Any] = [data[begin : begin + size] for begin in (rows * size).tolist()]
        else:
            cuts = range(0, self._size * len(rows) + 1, self._size) if self._size else [0] * (len(rows) + 1)
            arrays = _cut_arrays(self._child, self._elements(rows), cuts)
        return with_none(arrays, self.is_null(rows))

    def values(self, rows: Int64Array) -> list[Any]:
        """Return a copy of each array; lists of what is no number."""
        if has_array_elements(self.kind):
            return to_arrays(self.kind, self.arrays(rows))
        size, flat = self._size, self._child.values(self._elements(rows))
        values: list[Any] = [flat[place * size : (place + 1) * size] for place in range(len(rows))]
        return with_none(values, self.is_null(rows))

    def filled(self, rows: Int64Array) -> npt.NDArray[Any]:
        """Return the elements of some lists, as elements of larger lists; a list that is null has missing ones."""
        assert isinstance(self._child, ArrayNode)  # noqa: S101  as `has_array_elements` says
        flat = self._child.filled(self._elements(rows))
        lists, missing = flat.reshape(len(rows), self._size, *flat.shape[1:]), missing_value(flat.dtype)
        is_null = self.is_null(rows)
        if is_null is not None and missing is not None:
            lists[is_null] = missing
        return lists

    def lacks(self, rows: Int64Array) -> BoolArray | None:
        """Return which elements have no value in `filled`, and nothing that says so: all of a list that is null."""
        assert isinstance(self._child, ArrayNode)  # noqa: S101  as `has_array_elements` says
        is_null, within = self.is_null(rows), self._child.lacks(self._elements(rows))
        dtype, shape = element_shape(self.kind)
        if missing_value(dtype) is not None or (is_null is None and within is None):
            return None
        found = np.zeros((len(rows), self._size, *shape), np.bool_)
        if within is not None:
            found[:] = within.reshape(found.shape)
        if is_null is not None:
            found[is_null] = True
        return found

    def _elements(self, rows: Int64Array) -> Int64Array:
        elements: Int64Array = (rows[:, None] * self._size + np.arange(self._size)).reshape(-1)
        return elements


def _cut_arrays(child: Node, elements: Int64Array, cuts: list[int] | range) -> list[Any]:
    """Cut elements into arrays; one with nulls for which its dtype has no value is of objects, with None."""
    assert isinstance(child, ArrayNode)  # noqa: S101  as `has_array_elements` says
    flat, lacks = child.filled(elements), child.lacks(elements)
    values: list[Any] = [flat[begin:end] for begin, end in pairwise(cuts)]
    if lacks is not None and lacks.any():
        for place in set((np.searchsorted(cuts, lacks.nonzero()[0], side="right") - 1).tolist()):
            values[place] = values[place].astype(object)
            values[place][lacks[cuts[place] : cuts[place + 1]]] = None
    return values


def _bytes_of(block: npt.NDArray[Any] | None) -> tuple[memoryview, int] | None:
    """Return the bytes of elements that lie there as in an array, and how many each takes: cut sooner than arrays."""
    if block is None:
        return None
    return block.reshape(-1).view(np.uint8).data, block.itemsize * math.prod(block.shape[1:])


def to_arrays(kind: ColumnType, values: list[Any]) -> list[Any]:
    """Copy what lies in the file, of what `arrays` gave."""
    dtype, shape = element_shape(kind)
    return [
        np.frombuffer(bytearray(value), dtype).reshape(-1, *shape) if isinstance(value, memoryview) else value
        for value in values
    ]


class StructNode(Node):
    """Dicts."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, children: list[Node]) -> None:
        super().__init__(kind, file, path)
        self._children = children
        self.length = min([self.length, *(child.length for child in children)])

    def values(self, rows: Int64Array) -> list[Any]:
        """Make dicts of the values of all fields."""
        names = [name for name, _ in self.kind.fields]
        values: list[Any] = join_columns(names, [child.values(rows) for child in self._children], len(rows))
        return with_none(values, self.is_null(rows))


class MapNode(_OffsetsNode):
    """Lists of pairs: keys need not be different, nor such that a dict can have them."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, keys: Node, items: Node) -> None:
        super().__init__(kind, file, path, min(keys.length, items.length))
        self._keys, self._items = keys, items

    def values(self, rows: Int64Array) -> list[Any]:
        """Pair keys and values."""
        elements, cuts = self._elements(rows)
        flat = list(zip(self._keys.values(elements), self._items.values(elements), strict=True))
        return with_none([flat[begin:end] for begin, end in pairwise(cuts)], self.is_null(rows))


class DictionaryNode(ArrayNode):
    """Numbers of values, which are made once."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, child: Node) -> None:
        super().__init__(kind, file, path)
        self._child = child
        self._indices = self._array(file, path, "data", _INDEX_KINDS)
        self.length = min(self.length, len(self._indices))
        self._is_checked = False
        self._pieces: list[Any] | None = None
        self._values: list[Any] | None = None
        self._dictionary: npt.NDArray[Any] | None = None

    def is_null(self, rows: Int64Array) -> BoolArray | None:
        """Return which rows are, or have a value that is."""
        is_null, within = super().is_null(rows), self._child.is_null(self._numbers(rows))
        if is_null is None or within is None:
            return within if is_null is None else is_null
        return is_null | within

    def array(self, rows: Int64Array) -> npt.NDArray[Any]:
        """Pick values, if they are numbers."""
        if self._dictionary is None:
            self._dictionary = self._child.array(np.arange(self._child.length))
        values: npt.NDArray[Any] = self._dictionary[self._numbers(rows)]
        return values

    def pieces(self, rows: Int64Array) -> StoredValues | list[Any]:
        """Pick values, if they are bytes."""
        if self._pieces is None:
            self._pieces = as_list(self._child.pieces(np.arange(self._child.length)))
        return self._pick(self._pieces, rows)

    def values(self, rows: Int64Array) -> list[Any]:
        """Pick values."""
        if array_dtype(self.kind) is not None:
            return super().values(rows)
        if self._values is None:
            self._values = self._child.values(np.arange(self._child.length))
        return self._pick(self._values, rows)

    def _pick(self, values: list[Any], rows: Int64Array) -> list[Any]:
        return with_none(list(map(values.__getitem__, self._numbers(rows).tolist())), super().is_null(rows))

    def _numbers(self, rows: Int64Array) -> npt.NDArray[Any]:
        if not self._is_checked:
            size = self._child.length
            is_inside = not len(self._indices) or (self._indices.min() >= 0 and self._indices.max() < size)
            if size == ANY_LENGTH or not is_inside:
                raise self.error("refers to values that are not in its dictionary")
            self._is_checked = True
        return self._indices[rows]
