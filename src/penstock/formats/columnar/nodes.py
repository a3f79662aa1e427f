"""The buffers of one column, as Arrow lays them out, and the values of any rows of it.

A node is a column, or what lies within one: the elements of its lists, the fields of its structs. Sizes are checked
when a node is opened, and the offsets of all its rows when the first of them is asked for. NumPy refuses places outside
of an array, so a broken file cannot be read beyond its end.
"""

from __future__ import annotations

import sys
from decimal import Context, Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.arrays_file import ArraysFile
from penstock.blocks.block import join_columns
from penstock.errors import CorruptShardError
from penstock.formats.columnar.types import (
    array_dtype,
    has_array_elements,
    missing_value,
    to_values,
    with_none,
)
from penstock.formats.gather import ShardMemory, as_list, pieces_of, place_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from penstock.formats.columnar.types import ColumnType
    from penstock.formats.encodings.base import Encoding
    from penstock.formats.gather import StoredValues
    from penstock.formats.rows import ShardBytes
    from penstock.types import Int64Array

    BoolArray = npt.NDArray[np.bool_]

ANY_LENGTH = sys.maxsize  # of a column that takes no bytes
_EXACT = Context(prec=80)  # no decimal of Arrow's has more than 76 digits


class BufferFile(ArraysFile):
    """The open file that the buffers of all columns are in."""

    def __init__(self, data: ShardBytes, name: str) -> None:
        super().__init__(data, name)
        self.place = place_of(data) if len(data) else 0
        self.memory = ShardMemory(name, data, memoryview(data), self.place, 0)

    def place_of(self, name: str) -> int:
        """Return where in memory an array begins."""
        return self.place + self.begin_of(name)


class ValueBuffers(NamedTuple):
    """Where the values of a column lie in memory, one after another; true for as long as the column is held."""

    data: int  # where the first value begins
    num_bytes: int  # of all values
    item_bytes: int  # of each value; of values of any length, of what their offsets count
    offsets: int = -1  # where those begin; not there: all values are of one size
    offset_bytes: int = 0
    validity: int = -1  # where the bits begin that tell which rows have a value; not there: all have


class Node:
    """Rows of one column; `length` is how many its buffers can hold."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str) -> None:
        self.kind, self.name = kind, file.name
        self.length = ANY_LENGTH
        self.block: npt.NDArray[Any] | None = None  # all values, if they lie there as an array would, and none is null
        self.buffers: ValueBuffers | None = None  # if values can be copied without asking this
        self._validity: npt.NDArray[np.uint8] | None = None
        self._validity_place = -1
        if f"{path}.validity" in file:
            self._validity = self._array(file, path, "validity", ("|u1",))
            self._validity_place = file.place_of(f"{path}.validity")
            self.length = 8 * len(self._validity)

    def is_null(self, rows: Int64Array) -> BoolArray | None:
        """Return which rows are null; None: no row of the column is."""
        return None if self._validity is None else ~_bits(self._validity, rows)

    def values(self, rows: Int64Array) -> list[Any]:
        """Return the values as samples hold them, None where there is none."""
        return with_none(self._values(rows), self.is_null(rows))

    def array(self, rows: Int64Array) -> npt.NDArray[Any]:
        """Return the values of a column of an `array_dtype`; anything where there is none."""
        raise NotImplementedError

    def pieces(self, rows: Int64Array) -> StoredValues | list[Any]:
        """Return the bytes of values of strings, binary and images, None where there are none."""
        raise NotImplementedError

    def masked(self, rows: Int64Array) -> tuple[npt.NDArray[Any], BoolArray | None]:
        """Return an array of values, and which of its elements have none; None: all have one."""
        return self.array(rows), self.is_null(rows)

    def _values(self, rows: Int64Array) -> list[Any]:
        return to_values(self.kind.logical, self.array(rows), self.is_null(rows))

    def _array(self, file: BufferFile, path: str, buffer: str, kinds: tuple[str, ...]) -> npt.NDArray[Any]:
        array = file.get(f"{path}.{buffer}")
        if array is None or array.dtype.str not in kinds:
            raise self.error(f"lacks the {buffer} of {path}")
        return array

    def error(self, reason: str) -> CorruptShardError:
        """Return what is wrong with it."""
        return CorruptShardError(f"{self.name}: the column of type {self.kind} {reason}", shard=self.name)


def _bits(bitmap: npt.NDArray[np.uint8], rows: Int64Array) -> BoolArray:
    found: BoolArray = ((bitmap[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1).view(np.bool_)
    return found


class _NullNode(Node):
    def is_null(self, rows: Int64Array) -> BoolArray:
        return np.ones(len(rows), np.bool_)

    def _values(self, rows: Int64Array) -> list[Any]:
        return [None] * len(rows)


class _NumberNode(Node):
    """Numbers, and times that are stored as numbers."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str) -> None:
        super().__init__(kind, file, path)
        dtype = array_dtype(kind)
        assert dtype is not None  # noqa: S101  who opens nodes knows
        self._dtype = dtype
        kinds = {"date": ("<i4", "<i8"), "time": ("<i4", "<i8")}.get(kind.kind)
        stored = self._array(file, path, "data", kinds or (dtype.str if dtype.kind not in "Mm" else "<i8",))
        self.length = min(self.length, len(stored))
        # Times of 64 bits are what they are; others become it when they are gathered: days as milliseconds, say.
        self._is_same = stored.dtype.itemsize == dtype.itemsize and kind.kind != "date"
        self._data = stored.view(dtype) if self._is_same else stored
        if self._is_same:
            place = file.place_of(f"{path}.data")
            self.buffers = ValueBuffers(place, stored.nbytes, dtype.itemsize, validity=self._validity_place)
            self.block = self._data if self._validity is None else None

    def array(self, rows: Int64Array) -> npt.NDArray[Any]:
        gathered = self._data[rows]
        if self._is_same:
            return gathered
        if self.kind.kind == "date" and gathered.dtype.itemsize == 8:
            gathered = gathered // 86_400_000
        return gathered.astype(np.int64).view(self._dtype)


class _BoolNode(Node):
    """Truth values, a bit each."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str) -> None:
        super().__init__(kind, file, path)
        self._data = self._array(file, path, "data", ("|u1",))
        self.length = min(self.length, 8 * len(self._data))

    def array(self, rows: Int64Array) -> npt.NDArray[Any]:
        return _bits(self._data, rows)


# --- Runs of bytes, and of other rows -----------------------------------------------------------------------------


class _RunsNode(Node):
    """Rows that are runs of bytes or of child rows, of any length or all of one (`size`)."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, num_children: int | None = None) -> None:
        super().__init__(kind, file, path)
        if num_children is None:
            num_children = len(self._array(file, path, "data", ("|u1",)))
        self._num_children, self._is_checked = num_children, False
        self._size = kind.settings[0] if kind.kind in ("fixed_binary", "fixed_list") else None
        if self._size is None:
            self._offsets = self._array(file, path, "offsets", ("<i4", "<i8"))
            self._offsets_place = file.place_of(f"{path}.offsets")
            self.length = min(self.length, len(self._offsets) - 1)
        elif self._size:
            self.length = min(self.length, num_children // self._size)
        self._lengths = (self._size or 0,) * 2  # of the shortest and of the longest run, once they are checked

    def _set_buffers(self, place: int, num_bytes: int, item_bytes: int) -> None:
        """Note that what the runs consist of lies in memory, one after another."""
        if self._size is None:
            at, width = self._offsets_place, self._offsets.itemsize
            self.buffers = ValueBuffers(place, num_bytes, item_bytes, at, width, self._validity_place)
        elif self._size:
            self.buffers = ValueBuffers(place, num_bytes, self._size * item_bytes, validity=self._validity_place)

    def _bounds(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return where the runs of some rows begin and end; all offsets are checked with the first ones."""
        if self._size is not None:
            return rows * self._size, (rows + 1) * self._size
        offsets = self._offsets
        if not self._is_checked:
            falls = (offsets[1:] < offsets[:-1]).any()  # compared: what is subtracted may overflow, and seem to rise
            if len(offsets) and (offsets[0] < 0 or offsets[-1] > self._num_children or falls):
                raise self.error("has offsets that point outside of it")
            sizes = np.diff(offsets) if len(offsets) > 1 else np.zeros(1)
            self._lengths, self._is_checked = (int(sizes.min()), int(sizes.max())), True
        return offsets[rows].astype(np.int64), offsets[rows + 1].astype(np.int64)

    def _elements(self, rows: Int64Array) -> tuple[Int64Array, list[int]]:
        """Return all child rows of some rows, and where those of each begin and end among them."""
        begins, ends = self._bounds(rows)
        is_null = self.is_null(rows)
        if is_null is not None:
            ends = np.where(is_null, begins, ends)  # it may have elements, which are not to be seen
        sizes = ends - begins
        cuts = np.concatenate([[0], np.cumsum(sizes)])
        elements = np.arange(cuts[-1]) + np.repeat(begins - cuts[:-1], sizes)
        return elements, cuts.tolist()


class _BytesNode(_RunsNode):
    """Strings, binary values and images, of any length or of one."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, image: Encoding | None) -> None:
        super().__init__(kind, file, path)
        self._image, self._file, self._begin = image, file, file.begin_of(f"{path}.data")
        self._set_buffers(file.place + self._begin, self._num_children, 1)

    def pieces(self, rows: Int64Array) -> StoredValues | list[Any]:
        begins, ends = self._bounds(rows)
        pieces = pieces_of(self._file.memory, begins + self._begin, ends + self._begin, self._lengths)
        is_null = self.is_null(rows)
        return pieces if is_null is None or not is_null.any() else with_none(as_list(pieces), is_null)

    def _values(self, rows: Int64Array) -> list[Any]:  # of what is within lists and structs
        pieces: list[Any] = as_list(self.pieces(rows))
        try:
            if self.kind.kind == "string":
                return [None if piece is None else piece.decode() for piece in pieces]
            if self._image is not None:
                return self._image.decode_many(pieces)
        except Exception as error:
            raise self.error(f"holds a value that cannot be decoded: {error}") from error
        return pieces


class _ListNode(_RunsNode):
    """Lists of any length, or of one, which lists of numbers may be made of: a list that is null lacks its elements."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, child: Node) -> None:
        super().__init__(kind, file, path, child.length)
        self._child = child
        if child.block is not None and child.buffers is not None:
            self._set_buffers(child.buffers.data, child.buffers.num_bytes, child.buffers.item_bytes)
            if self._size and self._validity is None:
                end = len(child.block) // self._size * self._size
                self.block = child.block[:end].reshape(-1, self._size, *child.block.shape[1:])

    def _values(self, rows: Int64Array) -> list[Any]:
        block = self._child.block
        if block is not None:
            begins, ends = self._bounds(rows)
            bounds = zip(begins.tolist(), ends.tolist(), strict=True)
            return [block[begin:end].copy() for begin, end in bounds]
        elements, cuts = self._elements(rows)
        if has_array_elements(self.kind):
            return _cut_arrays(self._child, elements, cuts)
        flat = self._child.values(elements)
        return [flat[begin:end] for begin, end in pairwise(cuts)]

    def masked(self, rows: Int64Array) -> tuple[npt.NDArray[Any], BoolArray | None]:
        size = self._size or 0
        elements = (rows[:, None] * size + np.arange(size)).reshape(-1)
        flat, within = self._child.masked(elements)
        lists, is_null = flat.reshape(len(rows), size, *flat.shape[1:]), self.is_null(rows)
        if within is None and is_null is None:
            return lists, None
        lacks = np.zeros(lists.shape, np.bool_) if within is None else within.reshape(lists.shape)
        if is_null is not None:
            lacks[is_null] = True
        return lists, lacks


def _cut_arrays(child: Node, elements: Int64Array, cuts: list[int]) -> list[Any]:
    """Cut elements into arrays; one with nulls for which its dtype has no value is of objects, with None."""
    flat, lacks = child.masked(elements)
    missing = missing_value(flat.dtype)
    if lacks is not None and missing is not None:
        flat[lacks], lacks = missing, None
    values: list[Any] = [flat[begin:end] for begin, end in pairwise(cuts)]
    if lacks is not None and lacks.any():
        for place in set((np.searchsorted(cuts, lacks.nonzero()[0], side="right") - 1).tolist()):
            values[place] = values[place].astype(object)
            values[place][lacks[cuts[place] : cuts[place + 1]]] = None
    return values


class _MapNode(_RunsNode):
    """Lists of pairs: keys need not be different, nor such that a dict can have them."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, keys: Node, items: Node) -> None:
        super().__init__(kind, file, path, min(keys.length, items.length))
        self._keys, self._items = keys, items

    def _values(self, rows: Int64Array) -> list[Any]:
        elements, cuts = self._elements(rows)
        flat = list(zip(self._keys.values(elements), self._items.values(elements), strict=True))
        return [flat[begin:end] for begin, end in pairwise(cuts)]


# --- Others -----------------------------------------------------------------------------------------------------


class _ItemsNode(Node):
    """Decimals, as whole numbers of 4 to 32 bytes; intervals, as tuples of months, days and nanoseconds."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str) -> None:
        super().__init__(kind, file, path)
        form = np.dtype("<i4,<i4,<i8" if kind.kind == "interval" else f"V{kind.settings[0]}")
        data = self._array(file, path, "data", ("|u1",))
        self._items = data[: len(data) // form.itemsize * form.itemsize].view(form)
        self.length = min(self.length, len(self._items))

    def _values(self, rows: Int64Array) -> list[Any]:
        items: list[Any] = self._items[rows].tolist()
        if self.kind.kind == "interval":
            return items
        shift = Decimal(-self.kind.settings[2])
        return [Decimal(int.from_bytes(item, "little", signed=True)).scaleb(shift, _EXACT) for item in items]


class _StructNode(Node):
    """Dicts."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, *children: Node) -> None:
        super().__init__(kind, file, path)
        self._children = children
        self.length = min([self.length, *(child.length for child in children)])

    def _values(self, rows: Int64Array) -> list[Any]:
        names = [name for name, _ in self.kind.fields]
        return join_columns(names, [child.values(rows) for child in self._children], len(rows))


_INDEX_KINDS = ("|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8")


class _DictionaryNode(Node):
    """Numbers of values, which are made once."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, child: Node) -> None:
        super().__init__(kind, file, path)
        self._child = child
        self._indices = self._array(file, path, "data", _INDEX_KINDS)
        self.length = min(self.length, len(self._indices))
        self._is_checked = False
        self._made: dict[Any, Any] = {}  # all values of the dictionary, by what made them

    def is_null(self, rows: Int64Array) -> BoolArray | None:
        is_null, within = super().is_null(rows), self._child.is_null(self._numbers(rows))
        if is_null is None or within is None:
            return within if is_null is None else is_null
        return is_null | within

    def array(self, rows: Int64Array) -> npt.NDArray[Any]:
        numbers = self._numbers(rows)
        array: npt.NDArray[Any] = self._all(self._child.array)[numbers]
        return array

    def pieces(self, rows: Int64Array) -> StoredValues | list[Any]:
        return with_none(self._pick(self._child.pieces, rows), self.is_null(rows))

    def _values(self, rows: Int64Array) -> list[Any]:
        return super()._values(rows) if array_dtype(self.kind) is not None else self._pick(self._child.values, rows)

    def _pick(self, read: Callable[[Int64Array], StoredValues | list[Any]], rows: Int64Array) -> list[Any]:
        numbers = self._numbers(rows).tolist()
        return list(map(self._all(read).__getitem__, numbers))

    def _all(self, read: Callable[[Int64Array], Any]) -> Any:
        if read not in self._made:
            made = read(np.arange(self._child.length))
            self._made[read] = made if array_dtype(self.kind) is not None else as_list(made)
        return self._made[read]

    def _numbers(self, rows: Int64Array) -> npt.NDArray[Any]:
        if not self._is_checked:
            size = self._child.length
            is_inside = not len(self._indices) or (self._indices.min() >= 0 and self._indices.max() < size)
            if size == ANY_LENGTH or not is_inside:
                raise self.error("refers to values that are not in its dictionary")
            self._is_checked = True
        return self._indices[rows]


_NODES: dict[str, Callable[..., Node]] = {
    "null": _NullNode,
    "bool": _BoolNode,
    "decimal": _ItemsNode,
    "interval": _ItemsNode,
    "list": _ListNode,
    "fixed_list": _ListNode,
    "struct": _StructNode,
    "map": _MapNode,
    "dictionary": _DictionaryNode,
}


def open_node(kind: ColumnType, file: BufferFile, path: str, image: Encoding) -> Node:
    """Open a column of a file, or what lies within one; `image` reads the images in it."""
    children = [open_node(field, file, f"{path}.{number}", image) for number, (_, field) in enumerate(kind.fields)]
    if kind.kind in ("string", "binary", "fixed_binary", "image"):
        return _BytesNode(kind, file, path, image if kind.kind == "image" else None)
    return _NODES.get(kind.kind, _NumberNode)(kind, file, path, *children)
