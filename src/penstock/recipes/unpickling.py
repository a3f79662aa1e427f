"""Pickles of raw data and of old shards, read without running code of their writers: plain values, arrays, tensors."""

from __future__ import annotations

import io
import math
import pickle
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import CorruptShardError, UnsafeTypeError
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable

_KINDS = "biufc"  # numbers: what holds objects would be unpickled by NumPy


def load_values(data: bytes, where: str = "a value") -> Any:
    """Read a pickle of plain values, arrays of numbers and tensors; anything else that it names is refused."""
    try:
        return _unfold(_Loader(io.BytesIO(data), encoding="bytes").load())
    except UnsafeTypeError:
        raise
    except Exception as error:
        raise CorruptShardError(f"{where} is no pickle, or a damaged one: {error}") from error


def _unfold(value: Any) -> Any:
    """Put arrays in the place of what was noted of them."""
    if isinstance(value, _Array):
        return value.array
    if isinstance(value, dict):
        return {key: _unfold(each) for key, each in value.items()}
    return type(value)(map(_unfold, value)) if type(value) in (list, tuple) else value


class _DType:
    """What a pickle says about the numbers of an array."""

    def __init__(self, kind: Any, *_: Any) -> None:
        self._name = kind.decode() if isinstance(kind, bytes) else str(kind)
        self._order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._order = state[1].decode() if isinstance(state[1], bytes) else str(state[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype = np.dtype(self._name)
        if dtype.kind not in _KINDS:
            raise UnsafeTypeError(f"a pickle holds an array of {self._name!r}: only arrays of numbers are read")
        return dtype.newbyteorder(">") if self._order == ">" else dtype


class _Array:
    """What a pickle says about an array, which is made of its bytes if these are enough."""

    def __init__(self, *_: Any) -> None:
        self.array: Any = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, kind, is_fortran, data = state
        self.array = _array_of(data, kind, shape, "F" if is_fortran else "C")


def _array_of(data: Any, kind: _DType, shape: Any, order: str) -> Any:
    dtype = kind.dtype
    data = data.encode("latin1") if isinstance(data, str) else bytes(data)
    if math.prod(shape) * dtype.itemsize != len(data) or any(size < 0 for size in shape):
        raise CorruptShardError(f"a pickled array of shape {shape} in {dtype} has {len(data)} bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if order == "F" else "C").copy()


def _scalar(kind: _DType, data: Any) -> Any:
    return _array_of(data, kind, (), "C")[()]


def _storage(data: bytes) -> Any:
    """Read the numbers of a tensor; torch itself refuses all else there."""
    torch = require("torch", extra="torch", purpose="pickled tensors")
    return torch.load(io.BytesIO(data), weights_only=True)


def _tensor(*arguments: Any) -> Any:
    torch = require("torch", extra="torch", purpose="pickled tensors")
    return torch._utils._rebuild_tensor_v2(*arguments[:4], False, OrderedDict())


_ALLOWED: dict[str, Callable[..., Any]] = {
    "_codecs.encode": lambda text, _encoding: text.encode("latin1"),  # how bytes stand in old pickles
    "__builtin__.bytes": lambda: b"",
    "collections.OrderedDict": OrderedDict,
    "numpy.ndarray": _Array,
    "numpy.dtype": _DType,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch.storage._load_from_bytes": _storage,
}
for _home in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_home}.multiarray._reconstruct"] = _Array
    _ALLOWED[f"{_home}.multiarray.scalar"] = _scalar
    _ALLOWED[f"{_home}.numeric._frombuffer"] = _array_of


class _Loader(pickle.Unpickler):
    """Finds nothing but what makes values of the kinds above."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name of a pickle."""
        found = _ALLOWED.get(f"{module}.{name}")
        if found is None:
            raise UnsafeTypeError(
                f"a pickle names {module}.{name}, which could run code: only plain values, arrays of numbers and"
                " tensors are read"
            )
        return found
