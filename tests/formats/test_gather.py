"""Values gathered together are what slicing one after the other gives, whatever their lengths and bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.gather import ValueGatherer, as_list

# Zero bytes at the end are what NumPy's byte strings lose; the longest lengths are past what is gathered together.
ends_of_values = st.sampled_from([b"", b"\0", b"\0\0", b"a\0", b"\xff"])
values_of_any_length = st.lists(st.tuples(st.binary(max_size=120), ends_of_values), max_size=20)
values_of_one_length = st.integers(0, 40).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size)))


def check(values: list[bytes], picked: list[int]) -> None:
    """Store values with bytes between them that are no one's, and gather some."""
    data, begins = b"", []
    for value in values:
        data += b"\xee"
        begins.append(len(data))
        data += value
    lengths = [len(value) for value in values] or [0]
    gatherer = ValueGatherer(data, min(lengths), max(lengths))
    starts = np.array(begins, dtype=np.int64)[picked]
    ends = starts + np.array(lengths, dtype=np.int64)[picked]
    assert as_list(gatherer.gather(starts, ends)) == [values[number] for number in picked]


@settings(max_examples=300)
@given(values_of_any_length.map(lambda pairs: [head + tail for head, tail in pairs]) | values_of_one_length, st.data())
def test_they_are_what_was_stored(values: list[bytes], data: st.DataObject) -> None:
    numbers = st.integers(0, len(values) - 1) if values else st.nothing()
    check(values, data.draw(st.lists(numbers, max_size=30)) if values else [])
    check(values, list(range(len(values))))


@pytest.mark.parametrize("size", [1, 95, 96, 97, 1023, 1024, 1025])
def test_where_the_ways_part(size: int) -> None:
    equal = [bytes([65 + number]) * size for number in range(5)]
    check(equal, [4, 0, 3])
    check([*equal, b"short"], [5, 1, 2])
    check(["é".encode() * size, *equal], [0, 1])


def test_short_values_are_gathered_together() -> None:
    """Or the tests above would compare slicing with itself."""
    begins, ends = np.array([0, 4, 10]), np.array([3, 9, 15])
    gatherer = ValueGatherer(b"one,three,seven..", 3, 5)
    assert isinstance(gatherer.gather(begins, ends), np.ndarray)
    assert isinstance(ValueGatherer(b"three,seven", 5, 5).gather(np.array([0, 6]), np.array([5, 11])), np.ndarray)
