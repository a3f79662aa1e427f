"""NumPy arrays: `ndarray`, `ndarray:DTYPE` and `ndarray:DTYPE:D1,D2,…`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnValueError, EncodingConfigError
from penstock.formats.encodings.base import Encoding, FixedEncoding
from penstock.formats.encodings.numbers import dtype_name, is_tensor, to_array, widen
from penstock.formats.encodings.scalars import NUMBERS
from penstock.outside_text import ASCII, Bounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

# One byte names a dtype: its bits, plus 0 for unsigned, 1 for signed, 2 for float.
_DTYPE_CODES = {name: 8 * np.dtype(name).itemsize + "uif".index(np.dtype(name).kind) for name in NUMBERS}
_DTYPES_BY_CODE = {code: np.dtype(name).newbyteorder("<") for name, code in _DTYPE_CODES.items()}
# By dtype, in either byte order; asking a dtype for its name takes longer than copying a page.
_CODES_BY_DTYPE = {np.dtype(order + dtype.str[1:]): code for code, dtype in _DTYPES_BY_CODE.items() for order in "<>"}
_DIM_DTYPES: tuple[np.dtype[Any], ...] = (np.dtype("<u1"), np.dtype("<u2"), np.dtype("<u4"), np.dtype("<u8"))
_DIM = Bounded(r"[1-9]\d{0,9}", 10, ASCII)
_MAX_ITEM_BYTES = 2**31 - 1  # the widest item that NumPy can gather
_MAX_AXES = 63  # six bits beside the two that name the width of a dimension


class FixedArrayEncoding(FixedEncoding):
    """Arrays of one dtype and one shape: values only, no header. Those of one read share one allocation."""

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._shape = shape
        self.num_bytes = math.prod(shape) * self._dtype.itemsize

    def encode(self, value: Any) -> bytes:
        """Return the values in C order, little-endian."""
        array = _checked_array(value, self._dtype)
        if array.shape != self._shape:
            raise ColumnValueError(f"expects an array of shape {self._shape}, got {array.shape}")
        return array.tobytes()

    def to_array(self, block: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """View the items as one array with a leading axis for the samples."""
        return block.view(self._dtype).reshape(len(block), *self._shape)


class ArrayEncoding(Encoding):
    """Arrays whose shape, and perhaps dtype, stand in front of the values of each sample."""

    def __init__(self, dtype: str | None = None, *, takes_empty: bool = False) -> None:
        self._dtype = None if dtype is None else np.dtype(dtype).newbyteorder("<")
        self._takes_empty = takes_empty  # arrays without elements; readers always do

    def taking_empty(self) -> ArrayEncoding:
        """Return one that also encodes arrays without elements, which mosaicml-streaming reads but does not write."""
        return ArrayEncoding(None if self._dtype is None else self._dtype.name, takes_empty=True)

    def encode(self, value: Any) -> bytes:
        """Return header and values in C order, little-endian."""
        array = _checked_array(value, self._dtype)
        if array.ndim == 0 or (array.size == 0 and not self._takes_empty):
            raise ColumnValueError(f"expects an array with at least one axis and one element, got shape {array.shape}")
        if not array.size and self._dtype is None and isinstance(value, list | tuple):
            raise ColumnValueError("expects an array of a dtype, got an empty list: name it, such as 'ndarray:int64'")
        if array.ndim > _MAX_AXES:
            raise ColumnValueError(f"expects an array with at most {_MAX_AXES} axes, got {array.ndim}")
        code = b"" if self._dtype else bytes([_CODES_BY_DTYPE[array.dtype]])
        return b"".join([code, _encode_shape(array.shape), array.tobytes()])

    def decode(self, data: bytes) -> npt.NDArray[Any]:
        """Return a writable, aligned array."""
        dtype, shape, header = self._decode_header(data)
        _check_values(dtype, shape, len(data) - header)
        return np.frombuffer(data, dtype, offset=header).reshape(shape).copy()

    def to_column(self, pieces: Sequence[bytes]) -> npt.NDArray[Any] | list[Any]:
        """Stack the arrays if they agree in dtype and shape, else give a list of them."""
        if not pieces:
            return []
        dtype, shape, header = self._decode_header(pieces[0])
        begin, size = pieces[0][:header], len(pieces[0])
        if not all(len(piece) == size and piece.startswith(begin) for piece in pieces):
            return self.decode_many(pieces)
        _check_values(dtype, shape, size - header)
        block = np.frombuffer(b"".join(pieces), np.uint8).reshape(len(pieces), size)
        values = block[:, header:].copy()  # joined bytes are read-only, and after a header not aligned
        return values.view(dtype).reshape(len(pieces), *shape)

    def with_settings(self, settings: str) -> Encoding:
        """Fix the dtype, or dtype and shape."""
        return make_array(settings)

    def _decode_header(self, piece: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
        dtype, begin = self._dtype, 0
        if dtype is None:
            if not piece or piece[0] not in _DTYPES_BY_CODE:
                raise ColumnValueError("holds an array of an unknown dtype")
            dtype, begin = _DTYPES_BY_CODE[piece[0]], 1
        if len(piece) <= begin:
            raise ColumnValueError("holds an array that ends before its shape")
        num_axes, width = piece[begin] >> 2, piece[begin] & 3
        end = begin + 1 + (num_axes << width)
        if len(piece) < end:
            raise ColumnValueError("holds an array that ends within its shape")
        dims = np.frombuffer(piece, _DIM_DTYPES[width], count=num_axes, offset=begin + 1)
        return dtype, tuple(dims.tolist()), end


def _checked_array(value: Any, dtype: np.dtype[Any] | None) -> npt.NDArray[Any]:
    """Return the array in little-endian order if it may be stored."""
    array = value if isinstance(value, np.ndarray) else to_array(value, dtype)
    if array.dtype == dtype:
        return array
    array = widen(array)
    code = _CODES_BY_DTYPE.get(array.dtype)
    if code is None:
        raise ColumnValueError(
            f"expects an array of {', '.join(_DTYPE_CODES)}, got {dtype_name(value)}: convert it to one of them"
            " with value.astype(...)"
        )
    if dtype is not None and code != _CODES_BY_DTYPE[dtype]:
        name = array.dtype.name
        convert = (
            f"value.float().numpy().astype({dtype.name!r})" if is_tensor(value) else f"value.astype({dtype.name!r})"
        )
        raise ColumnValueError(
            f"expects an array of {dtype.name}, got {dtype_name(value)}: use columns={{...: 'ndarray:{name}'}}, or"
            f" pass {convert}"
        )
    return array.astype(_DTYPES_BY_CODE[code], copy=False)


def _check_values(dtype: np.dtype[Any], shape: tuple[int, ...], num_bytes: int) -> None:
    if math.prod(shape) * dtype.itemsize != num_bytes:
        raise ColumnValueError(f"holds {num_bytes} bytes, which do not fit an array of {dtype} and shape {shape}")


def _encode_shape(shape: tuple[int, ...]) -> bytes:
    width = next(w for w, dtype in enumerate(_DIM_DTYPES) if max(shape) < 256**dtype.itemsize)
    return bytes([len(shape) << 2 | width]) + np.array(shape, _DIM_DTYPES[width]).tobytes()


def make_array(config: str) -> FixedArrayEncoding | ArrayEncoding:
    """Make the encoding of arrays with what the config fixes: the dtype, or dtype and shape."""
    dtype, colon, dims = config.partition(":")
    if dtype not in _DTYPE_CODES:
        raise EncodingConfigError(f"ndarray:{config} has an unknown dtype: use one of {', '.join(_DTYPE_CODES)}")
    if not colon:
        return ArrayEncoding(dtype)
    shape = tuple(int(word) for word in dims.split(",") if _DIM.fullmatch(word))
    if len(shape) != dims.count(",") + 1 or len(shape) > _MAX_AXES:
        raise EncodingConfigError(
            f"ndarray:{config:.100} has a bad shape: write 1 to {_MAX_AXES} numbers, like 'ndarray:{dtype}:3,4'"
        )
    if math.prod(shape) * np.dtype(dtype).itemsize > _MAX_ITEM_BYTES:
        raise EncodingConfigError(f"ndarray:{config:.100} takes more than {_MAX_ITEM_BYTES} bytes per sample")
    return FixedArrayEncoding(dtype, shape)
