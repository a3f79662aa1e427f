"""Numbers of other makes: torch tensors, NumPy scalars and lists of numbers, as far as they are what they become."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnRangeError, ColumnTypeError, ColumnValueError

if TYPE_CHECKING:
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


def widen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Turn an array of a dtype that other packages gave NumPy into the one that holds each of its numbers."""
    wide = WIDENED.get(array.dtype.name)
    return array if wide is None else array.astype(wide)


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
