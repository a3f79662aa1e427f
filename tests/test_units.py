"""Sizes and counts as people write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, PenstockError
from penstock.units import format_bytes, parse_bytes, parse_count, round_up_bytes
from tests.formats.making import attempt


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (0, 0),
        (17, 17),
        (17.9, 17),
        ("100", 100),
        ("100b", 100),
        ("100B", 100),
        (" 64 KB ", 65536),
        ("64mb", 64 << 20),
        ("128MB", 128 << 20),
        ("1.5gb", 3 << 29),
        ("1.5GB", 3 << 29),
        ("0.1kb", 102),
        ("1tb", 1 << 40),
        ("1yb", 1 << 80),
        (".5kb", 512),
    ],
)
def test_bytes(text: Any, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text", ["10k", "1.5", "1.5b", "", "mb", "-1", "-1kb", "1e3", "1kbb", "ten", "1,000", "٣kb", -1]
)
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(ConfigError):
        parse_bytes(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, None, [1], -0.5])
def test_what_is_neither_size_nor_count(value: Any) -> None:
    with pytest.raises(ConfigError):
        parse_bytes(value)
    with pytest.raises(ConfigError):
        parse_count(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(1e8, 10**8), ("1k", 1000), ("2.5m", 2_500_000), ("1.5B", 1_500_000_000), ("1t", 10**12), ("7", 7), (7, 7)],
)
def test_counts(text: Any, expected: int) -> None:
    assert parse_count(text) == expected


@pytest.mark.parametrize("text", ["1kb", "x", "", "-1k"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_count(text)


@given(st.integers(0, 10**30))
def test_whole_bytes_come_back(number: int) -> None:
    assert parse_bytes(number) == parse_bytes(str(number)) == parse_bytes(f"{number}b") == number
    assert parse_bytes(f"{number}kb") == number * 1024


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1024, "1 kB"), (1000, "0.977 kB"), (3 << 29, "1.5 GB"), (5 << 50, "5 PB")],
)
def test_format_bytes(number: int, text: str) -> None:
    assert format_bytes(number) == text


@given(st.integers(1, 10**18))
def test_a_size_that_is_rounded_up_holds_as_much_and_little_more(number: int) -> None:
    assert number <= parse_bytes(round_up_bytes(number)) <= number * 1.12 + 110


# --- Any number and any unit ---------------------------------------------------------------------------------

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
def test_counts_of_any_number(number: int, unit: str) -> None:
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
