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
from penstock.formats.columnar.types import array_dtype, element_shape, has_array_elements, missing_value, to_values
from penstock.formats.gather import as_list, copy_pieces, place_of

if TYPE_CHECKING:
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
        self.data, self.num_bytes = data, len(data)
        self.place = place_of(data) if len(data) else 0

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
        raise NotImplementedError

    def array(self, rows: Int64Array) -> npt.NDArray[Any]:
        """Return the values of a column of an `array_dtype`; anything where there is none."""
        raise NotImplementedError

    def pieces(self, rows: Int64Array) -> StoredValues | list[Any]:
        """Return the bytes of values of strings, binary and images, None where there are none."""
        raise NotImplementedError

    def filled(self, rows: Int64Array) -> npt.NDArray[Any]:
        """Return an array with NaN or NaT where there is no value, if its dtype has that."""
        array, is_null = self.array(rows), self.is_null(rows)
        missing = missing_value(array.dtype)
        if is_null is not None and missing is not None:
            array[is_null] = missing
        return array

    def lacks(self, rows: Int64Array) -> BoolArray | None:
        """Return at which rows `filled` has no value, and nothing that says so."""
        dtype = array_dtype(self.kind)
        return self.is_null(rows) if dtype is not None and missing_value(dtype) is None else None

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


def with_none(values: list[Any], is_null: BoolArray | None) -> list[Any]:
    """Put None where there is no value."""
    if is_null is not None:
        for place in np.flatnonzero(is_null).tolist():
            values[place] = None
    return values


class NullNode(Node):
    """Nothing but nulls."""

    def is_null(self, rows: Int64Array) -> BoolArray:
        """All are."""
        return np.ones(len(rows), np.bool_)

    def values(self, rows: Int64Array) -> list[Any]:
        """Return None for each."""
        return [None] * len(rows)


class ArrayNode(Node):
    """Values that NumPy can hold."""

    def values(self, rows: Int64Array) -> list[Any]:
        """Turn an array of them into what samples hold."""
        return to_values(self.kind.logical, self.array(rows), self.is_null(rows))


class NumberNode(ArrayNode):
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
        """Gather them."""
        gathered = self._data[rows]
        if self._is_same:
            return gathered
        if self.kind.kind == "date" and gathered.dtype.itemsize == 8:
            gathered = gathered // 86_400_000
        return gathered.astype(np.int64).view(self._dtype)


class BoolNode(ArrayNode):
    """Truth values, a bit each."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str) -> None:
        super().__init__(kind, file, path)
        self._data = self._array(file, path, "data", ("|u1",))
        self.length = min(self.length, 8 * len(self._data))

    def array(self, rows: Int64Array) -> npt.NDArray[Any]:
        """Pick the bits."""
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


class BytesNode(_RunsNode):
    """Strings, binary values and images, of any length or of one."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, image: Encoding | None) -> None:
        super().__init__(kind, file, path)
        self._image, self._file, self._place = image, file, file.place_of(f"{path}.data")
        self._set_buffers(self._place, self._num_children, 1)

    def pieces(self, rows: Int64Array) -> StoredValues | list[Any]:
        """Copy their bytes."""
        begins, ends = self._bounds(rows)
        pieces = copy_pieces([self._file], [len(rows)], None, begins + self._place, ends + self._place, self._lengths)
        is_null = self.is_null(rows)
        return pieces if is_null is None or not is_null.any() else with_none(as_list(pieces), is_null)

    def values(self, rows: Int64Array) -> list[Any]:
        """Decode them: within lists and structs that is done here."""
        pieces: list[Any] = as_list(self.pieces(rows))
        try:
            if self.kind.kind == "string":
                return [None if piece is None else piece.decode() for piece in pieces]
            if self._image is not None:
                return self._image.decode_many(pieces)
        except Exception as error:
            raise self.error(f"holds a value that cannot be decoded: {error}") from error
        return pieces


class ListNode(_RunsNode):
    """Lists of any length, or of one."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, child: Node) -> None:
        super().__init__(kind, file, path, child.length)
        self._child = child
        if child.block is not None and child.buffers is not None:
            self._set_buffers(child.buffers.data, child.buffers.num_bytes, child.buffers.item_bytes)

    def values(self, rows: Int64Array) -> list[Any]:
        """Return an array for each list; a list, if it is of what is no number."""
        block = self._child.block
        if block is not None:
            begins, ends = self._bounds(rows)
            bounds = zip(begins.tolist(), ends.tolist(), strict=True)
            values: list[Any] = [block[begin:end].copy() for begin, end in bounds]
        else:
            elements, cuts = self._elements(rows)
            if has_array_elements(self.kind):
                values = _cut_arrays(self._child, elements, cuts)
            else:
                flat = self._child.values(elements)
                values = [flat[begin:end] for begin, end in pairwise(cuts)]
        return with_none(values, self.is_null(rows))


def _cut_arrays(child: Node, elements: Int64Array, cuts: list[int]) -> list[Any]:
    """Cut elements into arrays; one with nulls for which its dtype has no value is of objects, with None."""
    flat, lacks = child.filled(elements), child.lacks(elements)
    values: list[Any] = [flat[begin:end] for begin, end in pairwise(cuts)]
    if lacks is not None and lacks.any():
        for place in set((np.searchsorted(cuts, lacks.nonzero()[0], side="right") - 1).tolist()):
            values[place] = values[place].astype(object)
            values[place][lacks[cuts[place] : cuts[place + 1]]] = None
    return values


class FixedListNode(ListNode):
    """Lists of one length: lists of such are arrays, too."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, child: Node) -> None:
        super().__init__(kind, file, path, child)
        self._width: int = kind.settings[0]
        if self.buffers is not None and child.block is not None and self._validity is None:
            end = len(child.block) // self._width * self._width
            self.block = child.block[:end].reshape(-1, self._width, *child.block.shape[1:])

    def filled(self, rows: Int64Array) -> npt.NDArray[Any]:
        """Return the elements of some lists, as elements of larger lists; a list that is null has missing ones."""
        flat = self._child.filled(self._all_elements(rows))
        lists, missing = flat.reshape(len(rows), self._width, *flat.shape[1:]), missing_value(flat.dtype)
        is_null = self.is_null(rows)
        if is_null is not None and missing is not None:
            lists[is_null] = missing
        return lists

    def lacks(self, rows: Int64Array) -> BoolArray | None:
        """Return which elements have no value in `filled`, and nothing that says so: all of a list that is null."""
        is_null, within = self.is_null(rows), self._child.lacks(self._all_elements(rows))
        dtype, shape = element_shape(self.kind)
        if missing_value(dtype) is not None or (is_null is None and within is None):
            return None
        found = np.zeros((len(rows), self._width, *shape), np.bool_)
        if within is not None:
            found[:] = within.reshape(found.shape)
        if is_null is not None:
            found[is_null] = True
        return found

    def _all_elements(self, rows: Int64Array) -> Int64Array:
        elements: Int64Array = (rows[:, None] * self._width + np.arange(self._width)).reshape(-1)
        return elements


class MapNode(_RunsNode):
    """Lists of pairs: keys need not be different, nor such that a dict can have them."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, keys: Node, items: Node) -> None:
        super().__init__(kind, file, path, min(keys.length, items.length))
        self._keys, self._items = keys, items

    def values(self, rows: Int64Array) -> list[Any]:
        """Pair keys and values."""
        elements, cuts = self._elements(rows)
        flat = list(zip(self._keys.values(elements), self._items.values(elements), strict=True))
        return with_none([flat[begin:end] for begin, end in pairwise(cuts)], self.is_null(rows))


# --- Others -----------------------------------------------------------------------------------------------------


class DecimalNode(Node):
    """Decimals, as whole numbers of 4 to 32 bytes."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str) -> None:
        super().__init__(kind, file, path)
        self._num_bytes, _, self._scale = kind.settings
        data = self._array(file, path, "data", ("|u1",))
        self._items = data[: len(data) // self._num_bytes * self._num_bytes].view(f"V{self._num_bytes}")
        self.length = min(self.length, len(self._items))

    def values(self, rows: Int64Array) -> list[Any]:
        """Make them one by one."""
        shift = Decimal(-self._scale)
        values: list[Any] = [
            Decimal(int.from_bytes(item, "little", signed=True)).scaleb(shift, _EXACT)
            for item in self._items[rows].tolist()
        ]
        return with_none(values, self.is_null(rows))


class IntervalNode(Node):
    """Months, days and nanoseconds, as a tuple."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str) -> None:
        super().__init__(kind, file, path)
        data = self._array(file, path, "data", ("|u1",))
        self._items = data[: len(data) // 16 * 16].view("<i4,<i4,<i8")
        self.length = min(self.length, len(self._items))

    def values(self, rows: Int64Array) -> list[Any]:
        """Return the tuples."""
        return with_none(self._items[rows].tolist(), self.is_null(rows))


_INDEX_KINDS = ("|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8")


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


def open_node(kind: ColumnType, file: BufferFile, path: str, image: Encoding) -> Node:
    """Open a column of a file, or what lies within one; `image` reads the images in it."""
    children = [open_node(field, file, f"{path}.{number}", image) for number, (_, field) in enumerate(kind.fields)]
    match kind.kind:
        case "string" | "binary" | "fixed_binary" | "image":
            return BytesNode(kind, file, path, image if kind.kind == "image" else None)
        case "list":
            return ListNode(kind, file, path, *children)
        case "fixed_list":
            return FixedListNode(kind, file, path, *children)
        case "struct":
            return StructNode(kind, file, path, children)
        case "map":
            return MapNode(kind, file, path, *children)
        case "dictionary":
            return DictionaryNode(kind, file, path, *children)
        case _:
            simple = {"null": NullNode, "bool": BoolNode, "decimal": DecimalNode, "interval": IntervalNode}
            return simple.get(kind.kind, NumberNode)(kind, file, path)
