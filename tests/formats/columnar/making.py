"""Arrow tables of any types, with any values and nulls, as strategies."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_ZONES = st.sampled_from([None, "UTC", "Europe/Berlin", "+05:30"])
_text = st.text(st.characters(codec="utf-8"), max_size=12)
_LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    *(
        (getattr(pa, f"{sign}int{bits}")(), st.integers(-(2 ** (bits - 1)) * (not sign), 2 ** (bits - 1) - 1))
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    ),
    (pa.float16(), st.floats(width=16, allow_nan=False).map(np.float16)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), _text),
    (pa.large_string(), _text),
    (pa.binary(), st.binary(max_size=12)),
    (pa.large_binary(), st.binary(max_size=150)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal128(20, 3), st.integers(-(10**20) + 1, 10**20 - 1).map(lambda value: Decimal(value).scaleb(-3))),
    (pa.date32(), st.integers(-100_000, 100_000)),
    (pa.date64(), st.integers(-10_000, 10_000).map(lambda days: days * 86_400_000)),
    (pa.time32("s"), st.integers(0, 86_399)),
    (pa.time32("ms"), st.integers(0, 86_399_999)),
    (pa.time64("us"), st.integers(0, 86_400 * 10**6 - 1)),
    (pa.time64("ns"), st.integers(0, 86_400 * 10**9 - 1)),
    (pa.null(), st.none()),
    (pa.dictionary(pa.int8(), pa.string()), _text),
    (pa.dictionary(pa.int32(), pa.int64()), st.integers(-5, 5)),
    *((pa.duration(unit), st.integers(-(10**6) * size, 10**6 * size)) for unit, size in _UNITS.items()),
]


@st.composite
def _leaves(draw: st.DrawFn) -> tuple[Any, st.SearchStrategy[Any]]:
    if draw(st.integers(0, 7)) == 0:
        unit = draw(st.sampled_from(sorted(_UNITS)))
        seconds = 4 * 10**9  # to the year 2096, which a day of nanoseconds reaches
        return pa.timestamp(unit, draw(_ZONES)), st.integers(-seconds * _UNITS[unit], seconds * _UNITS[unit])
    found: tuple[Any, st.SearchStrategy[Any]] = draw(st.sampled_from(_LEAVES))
    return found


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(_list_of, st.sampled_from([pa.list_, pa.large_list]), inner),
        st.builds(_fixed_list_of, inner, st.integers(1, 3)),
        st.builds(_struct_of, st.lists(inner, min_size=1, max_size=3)),
        st.builds(_map_of, inner),
    )


_Kind = tuple[Any, st.SearchStrategy[Any]]


def _list_of(make: Any, inner: _Kind) -> _Kind:
    return make(inner[0]), st.lists(_or_null(inner[1]), max_size=4)


def _fixed_list_of(inner: _Kind, size: int) -> _Kind:
    return pa.list_(inner[0], size), st.lists(_or_null(inner[1]), min_size=size, max_size=size)


def _struct_of(inners: list[_Kind]) -> _Kind:
    names = [f"field {number}" for number in range(len(inners))]
    values = st.fixed_dictionaries({name: _or_null(inner[1]) for name, inner in zip(names, inners, strict=True)})
    return pa.struct([(name, inner[0]) for name, inner in zip(names, inners, strict=True)]), values


def _map_of(inner: _Kind) -> _Kind:
    return pa.map_(pa.string(), inner[0]), st.lists(st.tuples(_text, _or_null(inner[1])), max_size=3)


def _or_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 9).flatmap(lambda draw: st.none() if draw == 0 else values)


kinds: st.SearchStrategy[_Kind] = st.recursive(_leaves(), _nested, max_leaves=3)


@st.composite
def tables(draw: st.DrawFn, max_columns: int = 4, max_rows: int = 40) -> Any:
    """Draw a table; a few values of each column repeat in its rows, so that drawing takes no time."""
    num_rows = draw(st.integers(1, max_rows))
    columns = {}
    for number in range(draw(st.integers(1, max_columns))):
        kind, values = draw(kinds)
        has_nulls = draw(st.booleans())
        few = draw(st.lists(_or_null(values) if has_nulls else values, min_size=1, max_size=6))
        picks = draw(st.lists(st.integers(0, len(few) - 1), min_size=num_rows, max_size=num_rows))
        columns[f"c{number}.x" if number == 2 else f"c{number}"] = pa.array([few[pick] for pick in picks], kind)
    return pa.table(columns)
