"""The table of docs/formats.md, applied to what pyarrow gives: Arrow's values → what samples and columns hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def sample_values(array: Any) -> list[Any]:
    """Return what samples hold of a column."""
    return [_value(scalar) for scalar in array]


def column_values(kind: Any, values: list[Any]) -> Any:
    """Return what a columnar batch holds, of values that samples hold."""
    dtype = array_dtype(kind)
    if dtype is not None:
        return _array(dtype, values, _numbers_of(kind, values))
    alike = {(each.dtype, each.shape) if isinstance(each, np.ndarray) else None for each in values}
    if len(alike) == 1 and None not in alike and values[0].dtype != object:
        return np.stack(values)
    return values


def array_dtype(kind: Any) -> np.dtype[Any] | None:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return array_dtype(kind.storage_type)
    if types.is_dictionary(kind):
        return array_dtype(kind.value_type)
    if types.is_boolean(kind):
        return np.dtype(bool)
    if types.is_integer(kind) or types.is_floating(kind):
        return np.dtype({"halffloat": "f2", "float": "f4", "double": "f8"}.get(str(kind), str(kind)))
    if types.is_date(kind):
        return np.dtype("M8[D]")
    if types.is_timestamp(kind):
        return np.dtype(f"M8[{kind.unit}]")
    return np.dtype(f"m8[{kind.unit}]") if types.is_duration(kind) or types.is_time(kind) else None


def _numbers_of(kind: Any, values: list[Any]) -> list[Any]:
    """Return values that NumPy takes for those of its dtype: times in UTC, times of day since midnight."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return [value if value is None or isinstance(value, np.generic) else _plain_time(value) for value in values]
    return values


def _plain_time(value: Any) -> Any:
    if hasattr(value, "astimezone"):
        offset = value.utcoffset()
        return value if offset is None else value.replace(tzinfo=None) - offset
    whole = (value.hour * 60 + value.minute) * 60 + value.second
    return np.timedelta64(whole * 1_000_000 + value.microsecond, "us")


def _array(dtype: np.dtype[Any], values: list[Any], numbers: list[Any]) -> Any:
    """Nulls are NaN or NaT where there is such a value; else a column is a list, and a list an array of objects."""
    if None not in values:
        return np.array(numbers, dtype)
    missing = np.nan if dtype.kind == "f" else np.array("NaT", dtype) if dtype.kind in "Mm" else None
    return values if missing is None else np.array([missing if each is None else each for each in numbers], dtype)


def _value(scalar: Any) -> Any:
    kind = scalar.type
    types = pa.types
    if not scalar.is_valid:
        return None
    if isinstance(kind, pa.BaseExtensionType) or types.is_dictionary(kind):
        return _value(scalar.value)
    if types.is_timestamp(kind) and kind.unit == "ns":
        return np.datetime64(scalar.value, "ns")
    if (types.is_duration(kind) or types.is_time(kind)) and kind.unit == "ns":
        return np.timedelta64(scalar.value, "ns")
    if types.is_struct(kind):
        return {field.name: _value(scalar[number]) for number, field in enumerate(kind)}
    if types.is_map(kind):
        entries = scalar.values
        return list(zip(*(sample_values(entries.field(number)) for number in (0, 1)), strict=True))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _list(kind.value_type, sample_values(scalar.values))
    return float(scalar.as_py()) if types.is_floating(kind) else scalar.as_py()


def _list(kind: Any, values: list[Any]) -> Any:
    dtype = array_dtype(kind)
    if dtype is not None:
        array = _array(dtype, values, _numbers_of(kind, values))
        return array if isinstance(array, np.ndarray) else np.array(values, object)
    if _is_block(kind):
        base, shape = _block(kind)
        missing = np.full(shape, _array(base, [None], [None])[0])  # all elements of a list that is null
        return (
            np.stack([missing if each is None else each for each in values]) if values else np.empty((0, *shape), base)
        )
    return values


def _is_block(kind: Any) -> bool:
    return pa.types.is_fixed_size_list(kind) and (
        array_dtype(kind.value_type) is not None or _is_block(kind.value_type)
    )


def _block(kind: Any) -> tuple[Any, tuple[int, ...]]:
    if not pa.types.is_fixed_size_list(kind):
        return array_dtype(kind), ()
    base, shape = _block(kind.value_type)
    return base, (kind.list_size, *shape)
