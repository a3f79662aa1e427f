"""Sizes and counts as people write them, for any number and any unit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, PenstockError
from penstock.units import format_bytes, parse_bytes, parse_count
from tests.formats.making import attempt

BYTES = {"kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40, "pb": 2**50, "eb": 2**60, "zb": 2**70, "yb": 2**80}
COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
spaces = st.text(" \t", max_size=2)


@given(st.integers(0, 10**12), st.sampled_from(sorted(BYTES)), st.booleans(), spaces, spaces)
def test_whole_sizes(number: int, unit: str, is_upper: bool, before: str, between: str) -> None:
    text = f"{before}{number}{between}{unit.upper() if is_upper else unit}{before}"
    assert parse_bytes(text) == number * BYTES[unit]


@given(st.integers(0, 10**6), st.integers(0, 1023), st.sampled_from(sorted(BYTES)))
def test_parts_of_a_unit_are_exact(number: int, part: int, unit: str) -> None:
    """A 1024th has ten decimals, all of which count."""
    decimals = f"{part * 10**10 // 1024:010}"
    assert parse_bytes(f"{number}.{decimals}{unit}") == number * BYTES[unit] + part * BYTES[unit] // 1024


@given(st.integers(0, 2**64), st.sampled_from(["", "b", "B"]))
def test_plain_bytes(number: int, unit: str) -> None:
    assert parse_bytes(f"{number}{unit}") == parse_bytes(number) == number


@given(st.integers(0, 10**12), st.sampled_from(sorted(COUNTS)))
def test_counts(number: int, unit: str) -> None:
    assert parse_count(f"{number}{unit}") == number * COUNTS[unit]


@pytest.mark.parametrize("parse", [parse_bytes, parse_count])
@given(text=st.text(max_size=12) | st.text("0123456789.kmgbt -+e_", max_size=12))
def test_any_text_is_understood_or_refused(parse: type, text: str) -> None:
    size, error = attempt(ConfigError, lambda: parse(text))
    assert (size is None) == isinstance(error, (ConfigError, ValueError))
    assert size is None or (type(size) is int and size >= 0)


@pytest.mark.parametrize("parse", [parse_bytes, parse_count])
@given(number=st.floats() | st.integers() | st.booleans())
def test_any_number_is_understood_or_refused(parse: type, number: float) -> None:
    size, error = attempt(PenstockError, lambda: parse(number))
    assert isinstance(error, ConfigError) if size is None else size == int(number)


@given(st.integers(0, 2**59))
def test_shown_sizes_read_back_to_three_digits(number: int) -> None:
    shown = format_bytes(number)
    assert abs(parse_bytes(shown) - number) <= 0.006 * number + 1
