"""Numbers of fixed width: `int` and the NumPy scalars."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnRangeError, ColumnTypeError
from penstock.formats.encodings.base import FixedEncoding
from penstock.formats.encodings.numbers import check_number, to_float, to_integer

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

# The NumPy scalars, and how `struct` packs them.
NUMBERS = {
    "uint8": "B",
    "int8": "b",
    "uint16": "H",
    "int16": "h",
    "float16": "e",
    "uint32": "I",
    "int32": "i",
    "float32": "f",
    "uint64": "Q",
    "int64": "q",
    "float64": "d",
}
# What `struct` packs as it is, of the kind of the column; it would take truth values too, and tensors of them.
NUMPY_TYPES: dict[type, frozenset[type]] = {
    kind: frozenset(np.dtype(name).type for name in NUMBERS if np.dtype(name).kind in letters)
    for kind, letters in ((int, "iu"), (float, "f"))
}


class NumberEncoding(FixedEncoding):
    """A NumPy scalar; takes any number that it can be: floats are rounded, nothing else changes."""

    def __init__(self, name: str) -> None:
        self._dtype = np.dtype(name).newbyteorder("<")
        self._native = np.dtype(name)
        self.code = NUMBERS[name]
        self._pack = struct.Struct("<" + self.code).pack
        self.plain_type: type = float if name.startswith("float") else int
        self._convert: Callable[[Any, np.dtype[Any]], Any] = to_float if self.plain_type is float else to_integer
        self.num_bytes = self._dtype.itemsize

    def encode(self, value: Any) -> bytes:
        """Return the little-endian bytes of the number."""
        if type(value) is self.plain_type:  # packing is much faster than making a NumPy scalar
            try:
                return self._pack(value)
            except (struct.error, OverflowError):
                pass  # the number is out of range, which is said below
        return np.asarray(self._convert(value, self._native), self._dtype).tobytes()

    def to_array(self, block: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """View the items as numbers."""
        return block.view(self._dtype)


class IntEncoding(FixedEncoding):
    """A Python int of 64 bits."""

    num_bytes = 8
    code = "q"
    _pack = struct.Struct("<q").pack

    def encode(self, value: Any) -> bytes:
        """Return the little-endian bytes of the number."""
        number = check_number(value, "an int")
        if not isinstance(number, (int, np.integer)):
            raise ColumnTypeError(
                f"expects an int, got {type(value).__name__}: pass int(value), or use the encoding 'float64'"
            )
        try:
            return self._pack(int(number))
        except struct.error as error:
            raise ColumnRangeError(f"cannot hold {number} in 64 bits: use the encoding 'str_int'") from error

    def to_array(self, block: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """View the items as 64-bit numbers."""
        return block.view("<i8")

    def to_values(self, array: npt.NDArray[Any]) -> list[Any]:
        """Return Python ints."""
        values: list[Any] = array.tolist()
        return values
