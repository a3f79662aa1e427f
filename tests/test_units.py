"""Sizes and counts as people write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.units import format_bytes, parse_bytes, parse_count, round_up_bytes


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
