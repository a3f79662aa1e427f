"""The types of columns, in Arrow's words, and what becomes of their values in NumPy and in Python."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnValueError, CorruptShardError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

COLUMNS_FILE = "columns 1"  # what the description of a file of columns says it is; another one if their layout changes
_NUMBERS = {
    **{f"{sign}int{bits}": f"<{sign or 'i'}{bits // 8}" for sign in ("", "u") for bits in (16, 32, 64)},
    "int8": "|i1",
    "uint8": "|u1",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
}
_UNITS = ("s", "ms", "us", "ns")
# How many children a type of each kind has (None: any number), and the types of what else it takes.
_KINDS: dict[str, tuple[int | None, tuple[type, ...]]] = {
    **dict.fromkeys((*_NUMBERS, "null", "bool", "date", "interval", "string", "binary"), (0, ())),
    **dict.fromkeys(("time", "duration"), (0, (str,))),
    "timestamp": (0, (str, str)),  # the unit, and the zone or ""
    "decimal": (0, (int, int, int)),  # bytes of each value, precision, scale
    "fixed_binary": (0, (int,)),
    "list": (1, ()),
    "fixed_list": (1, (int,)),
    "struct": (None, ()),
    "map": (2, ()),
    "dictionary": (1, ()),  # stored as numbers of the values of its child
    "image": (0, ()),  # the bytes of a file
}
_DEEPEST = 64
_DAY_US = 24 * 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type: its kind, what else belongs to it (a unit, a size), and the types within it by their names."""

    kind: str
    settings: tuple[Any, ...] = ()
    fields: tuple[tuple[str, ColumnType], ...] = ()

    @property
    def child(self) -> ColumnType:
        """The one type within."""
        return self.fields[0][1]

    def __str__(self) -> str:
        within = ", ".join(
            f"{name}: {field}" if self.kind == "struct" else str(field) for name, field in self.logical.fields
        )
        shown = self.settings[1:] if self.kind == "decimal" else self.settings
        settings = ", ".join(str(each) for each in shown if each != "")
        text = self.logical.kind + (f"<{within}>" if self.fields else "") + (f"[{settings}]" if settings else "")
        return str(self.logical) if self.kind == "dictionary" else text

    @property
    def logical(self) -> ColumnType:
        """The type of the values, however they are stored."""
        if self.kind == "dictionary":
            return self.child.logical
        return ColumnType(self.kind, self.settings, tuple((name, field.logical) for name, field in self.fields))

    def to_json(self) -> list[Any]:
        """Return it as JSON."""
        return [self.kind, list(self.settings), [[name, field.to_json()] for name, field in self.fields]]


def parse_type(data: Any, where: str, depth: int = 0) -> ColumnType:
    """Understand what `to_json` gave, or something else that came from outside."""
    match data:
        case [str(kind), list(settings), list(fields)] if kind in _KINDS and depth < _DEEPEST:
            num_fields, kinds = _KINDS[kind]
            is_right = [type(each) for each in settings] == list(kinds) and num_fields in (None, len(fields))
            if is_right and all(isinstance(each, list) and len(each) == 2 for each in fields):
                parsed = tuple((str(name), parse_type(field, where, depth + 1)) for name, field in fields)
                found = ColumnType(kind, tuple(settings), parsed)
                if _is_sane(found):
                    return found
    raise CorruptShardError(f"{where} has a column of a type that does not exist: {data!r:.100}", shard=where)


def _is_sane(found: ColumnType) -> bool:
    settings = found.settings
    if found.kind in ("time", "duration", "timestamp"):
        return settings[0] in _UNITS
    if found.kind == "decimal":
        num_bytes, precision, scale = settings
        return num_bytes in (4, 8, 16, 32) and 0 < precision <= 76 and abs(scale) <= 1000
    return found.kind not in ("fixed_binary", "fixed_list") or 0 <= settings[0] < 2**31


# --- Values that NumPy can hold -------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def array_dtype(kind: ColumnType) -> np.dtype[Any] | None:
    """Return the dtype of an array of such values, or None if there is none."""
    if kind.kind in _NUMBERS:
        return np.dtype(_NUMBERS[kind.kind])
    if kind.kind == "bool":
        return np.dtype(np.bool_)
    if kind.kind == "date":
        return np.dtype("<M8[D]")
    if kind.kind in ("timestamp", "time", "duration"):
        return np.dtype(f"<{'M' if kind.kind == 'timestamp' else 'm'}8[{kind.settings[0]}]")
    return array_dtype(kind.child) if kind.kind == "dictionary" else None


def has_array_elements(kind: ColumnType) -> bool:
    """Return whether the elements of lists are numbers, or lists of one fixed length of them: each list is an array."""
    if kind.kind not in ("list", "fixed_list"):
        return False
    child = kind.child
    return array_dtype(child) is not None or (child.kind == "fixed_list" and has_array_elements(child))


@lru_cache(maxsize=1024)
def element_shape(kind: ColumnType) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and the shape of each element of lists of which each is an array."""
    dtype = array_dtype(kind.child)
    if dtype is not None:
        return dtype, ()
    dtype, shape = element_shape(kind.child)
    return dtype, (kind.child.settings[0], *shape)


def missing_value(dtype: np.dtype[Any]) -> Any:
    """Return the value of a dtype that means none, or None if it has no such value."""
    if dtype.kind == "f":
        return np.nan
    return np.array("NaT", dtype) if dtype.kind in "Mm" else None


def to_values(kind: ColumnType, array: npt.NDArray[Any], is_null: npt.NDArray[np.bool_] | None) -> list[Any]:
    """Turn an array of such values into what samples hold: None where there is none."""
    return with_none(_to_values(kind, array, is_null), is_null)


def with_none(values: list[Any], is_null: npt.NDArray[np.bool_] | None) -> list[Any]:
    """Put None where there is no value."""
    if is_null is not None:
        for place in np.flatnonzero(is_null).tolist():
            values[place] = None
    return values


def _to_values(kind: ColumnType, array: npt.NDArray[Any], is_null: npt.NDArray[np.bool_] | None) -> list[Any]:
    values: list[Any] = array.tolist()
    if array.dtype.kind not in "Mm":
        return values
    if array.dtype == np.dtype(f"{array.dtype.kind}8[ns]"):
        return list(array)  # Python's own have microseconds
    if kind.kind == "time":
        return _to_times(array if is_null is None else np.where(is_null, np.timedelta64(0, "s"), array))
    if any(type(value) is int for value in values):  # what NumPy gives where Python's types end, in the year 9999
        values = [array[place] if type(value) is int else value for place, value in enumerate(values)]
    if kind.kind == "timestamp" and kind.settings[1]:
        return list(map(_in_zone(kind.settings[1]), values))
    return values


def _to_times(array: npt.NDArray[Any]) -> list[Any]:
    since_midnight = array.astype("m8[us]")
    us = since_midnight.view(np.int64)
    if len(us) and not (us.min() >= 0 and us.max() < _DAY_US):
        raise ColumnValueError("holds a time of day beyond 24 hours")
    return [(dt.datetime.min + each).time() for each in since_midnight.tolist()]


@lru_cache(maxsize=256)
def _in_zone(name: str) -> Callable[[Any], Any]:
    zone = _find_zone(name)
    utc = dt.timezone.utc

    def convert(value: Any) -> Any:
        if not isinstance(value, dt.datetime):
            return value
        try:
            return value.replace(tzinfo=utc).astimezone(zone)
        except OverflowError:  # the last hours of the year 9999
            return np.datetime64(value)

    return convert


def _find_zone(name: str) -> dt.tzinfo:
    if name.upper() in ("UTC", "Z", "ETC/UTC"):
        return dt.timezone.utc
    try:
        if name[:1] in "+-":
            hours, _, minutes = name[1:].partition(":")
            offset = dt.timedelta(hours=int(hours), minutes=int(minutes or 0))
            return dt.timezone(-offset if name[0] == "-" else offset)
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:  # an unknown one is a KeyError
        raise ColumnValueError(
            f"is in the time zone {name!r:.100}, which this machine does not know: check the name, or pip install"
            " tzdata"
        ) from error
