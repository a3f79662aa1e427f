"""Numbers of other makes: torch tensors, NumPy scalars and lists of numbers, as far as they are what they become."""

from __future__ import annotations

import math
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnRangeError, ColumnTypeError, ColumnValueError, EncodingConfigError
from penstock.formats.encodings.base import Encoding, FixedEncoding
from penstock.outside_text import ASCII, Bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt


# Each number of these is also one of the other type, which NumPy has.
WIDENED = {"bfloat16": "float32"}


def is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor; who never imported torch has none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_bool(value: Any) -> bool:
    """Return whether a value is a truth value, which a column of numbers would give back as 0 or 1."""
    return isinstance(value, (bool, np.bool_))


def dtype_name(value: Any) -> str:
    """Name the dtype of an array or a tensor as NumPy does."""
    return str(value.dtype).removeprefix("torch.")


def plain_number(value: Any) -> Any:
    """Return the number that a value is, Python's or NumPy's, or None if it is none."""
    if is_tensor(value) and value.ndim == 0:
        value = value.item()  # of bfloat16, too
    elif isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, np.timedelta64)
    return value if is_number and not is_bool(value) else None


def check_number(value: Any, wanted: str) -> Any:
    """Return the number that a value is, or raise an error that says what to do."""
    number = plain_number(value)
    if number is not None:
        return number
    if is_bool(value):
        raise ColumnTypeError(
            f"expects {wanted}, got {type(value).__name__}, which would come back as {int(value)}: pass"
            " int(value), or use the encoding 'json', which keeps True and False"
        )
    if is_tensor(value) or isinstance(value, np.ndarray):
        raise ColumnTypeError(f"expects {wanted}, got {describe(value)}: {_remedy(value)}")
    raise ColumnTypeError(f"expects {wanted}, got {type(value).__name__}")


def _remedy(value: Any) -> str:
    if value.ndim == 0:
        return "pass a plain number"
    name = WIDENED.get(dtype_name(value), dtype_name(value))
    return f"use columns={{...: 'ndarray:{name}'}} for arrays, or pass value.item() for an array of one number"


def describe(value: Any) -> str:
    """Describe what kind of array or tensor a value is."""
    kind = "tensor" if is_tensor(value) else "array"
    return f"{'an' if kind == 'array' else 'a'} {kind} of {dtype_name(value)} and shape {tuple(value.shape)}"


def to_integer(value: Any, dtype: np.dtype[Any]) -> int:
    """Return a number that an integer dtype holds as it is."""
    number = check_number(value, f"a number of type {dtype.name}")
    if not math.isfinite(number) or int(number) != number:
        raise ColumnValueError(
            f"expects a whole number ({dtype.name}), got {number}: round it, or use the encoding 'float64'"
        )
    limits = np.iinfo(dtype)
    if not limits.min <= int(number) <= limits.max:
        raise ColumnRangeError(f"cannot hold {number}: {dtype.name} goes from {limits.min} to {limits.max}")
    return int(number)


def to_float(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number as a float dtype holds it: fractions are rounded, whole numbers and infinities stay exact."""
    number = check_number(value, f"a number of type {dtype.name}")
    with np.errstate(over="ignore"):
        try:
            stored = dtype.type(number)
        except OverflowError:  # an int that no float comes near
            stored = dtype.type(math.inf)
    if np.isinf(stored) and not (isinstance(number, (float, np.floating)) and np.isinf(number)):
        raise ColumnRangeError(
            f"cannot hold {number} as {dtype.name}: use the encoding 'float64', or 'str_int' for an int"
        )
    if isinstance(number, (int, np.integer)) and int(stored) != number:
        raise ColumnRangeError(
            f"cannot hold {number} exactly, it would come back as {int(stored)}: use an encoding for whole"
            " numbers, such as 'int'"
        )
    return stored


def to_array(value: Any, dtype: np.dtype[Any] | None) -> npt.NDArray[Any]:
    """Make an array of a tensor or a list of numbers, of the wanted dtype if a list says none itself."""
    if is_tensor(value):
        return tensor_to_array(value)
    if isinstance(value, (list, tuple)):
        return _list_to_array(value, dtype)
    raise ColumnTypeError(f"expects a NumPy array, got {type(value).__name__}: pass np.asarray(value)")


def tensor_to_array(tensor: Any) -> npt.NDArray[Any]:
    """Return a tensor of any device as an array; bfloat16, which NumPy lacks, as float32, which holds all of it."""
    try:
        wide = tensor.float() if dtype_name(tensor) in WIDENED else tensor
        array: npt.NDArray[Any] = wide.numpy(force=True)
    except (TypeError, RuntimeError) as error:
        raise ColumnTypeError(
            f"got {describe(tensor)}, which NumPy cannot hold: use the encoding 'ndarray:float32' and pass"
            " value.float().numpy()"
        ) from error
    return array


def _list_to_array(value: Any, dtype: np.dtype[Any] | None) -> npt.NDArray[Any]:
    wanted = "numbers" if dtype is None else f"numbers of type {dtype.name}"
    kinds = _kinds_in(value)
    if not kinds.isdisjoint((bool, np.bool_)):
        raise ColumnTypeError(
            f"expects {wanted}, got a list with True or False, which would come back as 1 and 0: use the encoding"
            " 'json'"
        )
    try:
        array = np.array(value)
    except ValueError as error:
        raise ColumnValueError(
            "expects an array, got lists of different lengths: pad them to the same length"
        ) from error
    if array.dtype.kind not in "iuf":
        raise ColumnTypeError(f"expects {wanted}, got a list that holds something else: pass np.asarray(value, dtype)")
    stored = array if dtype is None else _fit(array, dtype)
    if array.dtype.kind == "f" and int in kinds:  # it became a float because of others
        for number, found in zip(np.array(value, object).ravel(), stored.ravel().tolist(), strict=True):
            if isinstance(number, int) and number != found:
                raise ColumnRangeError(
                    f"cannot hold {number} beside floats, it would come back as {found}: pass np.asarray(value)"
                )
    return stored


def _fit(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Store the numbers of a list in a dtype by the rules for single numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        stored = array.astype(dtype)
        back = stored.astype(array.dtype)
    if array.dtype.kind == "f":
        is_other = np.isinf(stored) & ~np.isinf(array) if dtype.kind == "f" else stored != array
    elif dtype.kind == "f":
        is_other = back != array
    else:
        limits = np.iinfo(dtype)
        is_other = (array < limits.min) | (array > limits.max)
    if np.any(is_other):
        number = array[is_other].tolist()[0]
        remedy = "'ndarray:float64'" if array.dtype.kind == "f" else f"'ndarray:{array.dtype.name}'"
        raise ColumnRangeError(f"cannot hold {number} as {dtype.name}: use columns={{...: {remedy}}}")
    return stored


def _kinds_in(value: Any) -> set[type]:
    """Return the types in a nested list; NumPy turns truth values into numbers if others stand beside them."""
    kinds = set(map(type, value))
    if not kinds.isdisjoint((list, tuple)):
        kinds.update(*(_kinds_in(item) for item in value if isinstance(item, (list, tuple))))
    return kinds


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


class _NumPyEncoding(FixedEncoding):
    """Values of one dtype and one shape."""

    def __init__(self, dtype: str, shape: tuple[int, ...] = ()) -> None:
        self._dtype, self._shape = np.dtype(dtype).newbyteorder("<"), shape
        self.num_bytes = math.prod(shape) * self._dtype.itemsize

    def holds(self, values: npt.NDArray[Any]) -> bool:
        """Return whether an array, with a leading axis for the samples, has just this dtype and shape."""
        return values.dtype == self._dtype and values.shape[1:] == self._shape and self.num_bytes > 0

    def to_array(self, block: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """View the items as one array with a leading axis for the samples."""
        return block.view(self._dtype).reshape(len(block), *self._shape)


class NumberEncoding(_NumPyEncoding):
    """A NumPy scalar; takes any number that it can be: floats are rounded, nothing else changes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._native = np.dtype(name)
        self.code = NUMBERS[name]
        self._pack = struct.Struct("<" + self.code).pack
        self.plain_type: type = float if name.startswith("float") else int
        self._convert: Callable[[Any, np.dtype[Any]], Any] = to_float if self.plain_type is float else to_integer

    def encode(self, value: Any) -> bytes:
        """Return the little-endian bytes of the number."""
        if type(value) is self.plain_type:  # packing is much faster than making a NumPy scalar
            try:
                return self._pack(value)
            except (struct.error, OverflowError):
                pass  # the number is out of range, which is said below
        return np.asarray(self._convert(value, self._native), self._dtype).tobytes()


class IntEncoding(_NumPyEncoding):
    """A Python int of 64 bits."""

    code = "q"
    _pack = struct.Struct("<q").pack

    def __init__(self) -> None:
        super().__init__("int64")

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

    def to_values(self, array: npt.NDArray[Any]) -> list[Any]:
        """Return Python ints."""
        values: list[Any] = array.tolist()
        return values


# One byte names a dtype: its bits, plus 0 for unsigned, 1 for signed, 2 for float.
_DTYPE_CODES = {name: 8 * np.dtype(name).itemsize + "uif".index(np.dtype(name).kind) for name in NUMBERS}
_DTYPES_BY_CODE = {code: np.dtype(name).newbyteorder("<") for name, code in _DTYPE_CODES.items()}
# By dtype, in either byte order; asking a dtype for its name takes longer than copying a page.
_CODES_BY_DTYPE = {np.dtype(order + dtype.str[1:]): code for code, dtype in _DTYPES_BY_CODE.items() for order in "<>"}
_DIM_DTYPES: tuple[np.dtype[Any], ...] = (np.dtype("<u1"), np.dtype("<u2"), np.dtype("<u4"), np.dtype("<u8"))
_DIM = Bounded(r"[1-9]\d{0,9}", 10, ASCII)
_MAX_ITEM_BYTES = 2**31 - 1  # the widest item that NumPy can gather
_MAX_AXES = 63  # six bits beside the two that name the width of a dimension


class FixedArrayEncoding(_NumPyEncoding):
    """Arrays of one dtype and one shape: values only, no header. Those of one read share one allocation."""

    def encode(self, value: Any) -> bytes:
        """Return the values in C order, little-endian."""
        array = _checked_array(value, self._dtype)
        if array.shape != self._shape:
            raise ColumnValueError(f"expects an array of shape {self._shape}, got {array.shape}")
        return array.tobytes()


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
        width = next(w for w, dtype in enumerate(_DIM_DTYPES) if max(array.shape) < 256**dtype.itemsize)
        shape = bytes([array.ndim << 2 | width]) + np.array(array.shape, _DIM_DTYPES[width]).tobytes()
        return b"".join([code, shape, array.tobytes()])

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
    if array.dtype.name in WIDENED:  # other packages gave NumPy such dtypes
        array = array.astype(WIDENED[array.dtype.name])
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
