"""The buffers of one column, as Arrow lays them out, and the values of any rows of it.

A node is a column, or what lies within one: the elements of its lists, the fields of its structs. Sizes are checked
when a node is opened, and the offsets of all its rows when the first of them is asked for. NumPy refuses places outside
of an array, so a broken file cannot be read beyond its end.
"""

from __future__ import annotations

import sys
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.arrays_file import ArraysFile
from penstock.errors import CorruptShardError
from penstock.formats.columnar.types import array_dtype, missing_value, to_values
from penstock.formats.gather import ValueGatherer, as_list, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.formats.base import ShardBytes
    from penstock.formats.columnar.types import ColumnType
    from penstock.formats.encodings.base import Encoding
    from penstock.formats.gather import StoredValues
    from penstock.types import Int64Array

    BoolArray = npt.NDArray[np.bool_]

ANY_LENGTH = sys.maxsize  # of a column that takes no bytes
_EXACT = Context(prec=80)  # no decimal of Arrow's has more than 76 digits


class BufferFile(ArraysFile):
    """The open file that the buffers of all columns are in."""

    def __init__(self, data: ShardBytes, name: str) -> None:
        super().__init__(data, name)
        self.data = data
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

    @property
    def chunks(self) -> Sequence[Node]:
        """What it consists of, each with some of the rows."""
        return (self,)

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

    def arrays(self, rows: Int64Array) -> list[Any]:
        """Return the lists of a column of lists of an `array_dtype`, None as above.

        Each is an array, or a view of the bytes of one in the file. Nulls are NaN or NaT; where a dtype has no such
        value, an array with nulls is one of objects.
        """
        raise NotImplementedError

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


# --- Values of bytes ------------------------------------------------------------------------------------------


class BytesNode(Node):
    """Strings, binary values and images, of any length or of one."""

    def __init__(self, kind: ColumnType, file: BufferFile, path: str, image: Encoding | None) -> None:
        super().__init__(kind, file, path)
        self._encoding = image
        data = self._array(file, path, "data", ("|u1",))
        self._begin, self._num_bytes = file.begin_of(f"{path}.data"), len(data)
        self._file = file.data
        self._values: ValueGatherer | None = None
        self._width = kind.settings[0] if kind.kind == "fixed_binary" else None
        place = file.place + self._begin
        if self._width is None:
            self._offsets = self._array(file, path, "offsets", ("<i4", "<i8"))
            self.length = min(self.length, len(self._offsets) - 1)
            offsets = file.place_of(f"{path}.offsets"), self._offsets.itemsize
            self.buffers = ValueBuffers(place, len(data), 1, *offsets, self._validity_place)
        elif self._width:
            self.length = min(self.length, len(data) // self._width)
            self.buffers = ValueBuffers(place, len(data), self._width, validity=self._validity_place)

    def pieces(self, rows: Int64Array) -> StoredValues | list[Any]:
        """Copy their bytes."""
        if self._values is None:
            self._values = self._open_values()
        if self._width is None:
            begins = np.add(self._offsets[rows], self._begin, dtype=np.int64)
            ends = np.add(self._offsets[rows + 1], self._begin, dtype=np.int64)
        else:
            begins = rows * self._width + self._begin
            ends = begins + self._width
        pieces = self._values.gather(begins, ends)
        is_null = self.is_null(rows)
        return pieces if is_null is None or not is_null.any() else with_none(as_list(pieces), is_null)

    def values(self, rows: Int64Array) -> list[Any]:
        """Decode them: within lists and structs that is done here."""
        pieces: list[Any] = as_list(self.pieces(rows))
        try:
            if self.kind.kind == "string":
                return [None if piece is None else piece.decode() for piece in pieces]
            if self._encoding is not None:
                return self._encoding.decode_many(pieces)
        except Exception as error:
            raise self.error(f"holds a value that cannot be decoded: {error}") from error
        return pieces

    def _open_values(self) -> ValueGatherer:
        """Check all offsets, and find out how long values are."""
        if self._width is not None:
            return ValueGatherer(self._file, self._width, self._width)
        sizes = check_offsets(self._offsets, self._num_bytes, self)
        shortest, longest = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
        return ValueGatherer(self._file, shortest, longest)


def check_offsets(offsets: npt.NDArray[Any], end: int, node: Node) -> npt.NDArray[Any]:
    """Return the distances between offsets, which must rise from 0 or more to at most the end of their values."""
    falls = (offsets[1:] < offsets[:-1]).any()  # compared: what is subtracted may overflow, and seem to rise
    if len(offsets) and (offsets[0] < 0 or offsets[-1] > end or falls):
        raise node.error("has offsets that point outside of it")
    return np.diff(offsets)


def with_none(values: list[Any], is_null: BoolArray | None) -> list[Any]:
    """Put None where there is no value."""
    if is_null is not None:
        for place in np.flatnonzero(is_null).tolist():
            values[place] = None
    return values


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
