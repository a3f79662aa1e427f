"""Values gathered together are what slicing one after the other gives, whatever their lengths and bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.gather import ShardMemory, as_list, copy_pieces, place_of

# Zero bytes at the end are what NumPy's byte strings lose; the longest lengths are past what is gathered together.
ends_of_values = st.sampled_from([b"", b"\0", b"\0\0", b"a\0", b"\xff"])
values_of_any_length = st.lists(st.tuples(st.binary(max_size=120), ends_of_values), max_size=20)
values_of_one_length = st.integers(0, 40).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size)))


MANY = 9  # fewer values are sliced one after the other anyway


def memory_of(data: bytes) -> ShardMemory:
    return ShardMemory("a", data, memoryview(data), place_of(data), 0)


def check(values: list[bytes], picked: list[int]) -> None:
    """Store values in two shards with bytes between them that belong to neither, and gather some."""
    half = len(values) // 2
    shards, begins = [], []
    for group in (values[:half], values[half:]):
        data, firsts = b"\xdd", []
        for value in group:
            data += b"\xee"
            firsts.append(len(data))
            data += value
        shards.append(memory_of(data))
        begins += [shards[-1].place + first for first in firsts]
    order = np.argsort(np.array(picked * MANY, np.int64) >= half, kind="stable")
    by_shard = np.array(picked * MANY, np.int64)[order]
    counts = [int((by_shard < half).sum()), int((by_shard >= half).sum())]
    starts = np.array(begins, np.int64)[np.array(picked * MANY, np.int64)]
    ends = starts + np.array([len(values[number]) for number in picked * MANY], np.int64)
    found = copy_pieces(shards, counts, np.argsort(order), starts, ends)
    assert as_list(found) == [values[number] for number in picked * MANY]


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
    for data, begins, ends in ((b"one,three,seven..", [0, 4, 10], [3, 9, 15]), (b"three,seven", [0, 6], [5, 11])):
        shard, many = memory_of(data), np.zeros(MANY, np.int64)
        found = copy_pieces([shard], [MANY], None, shard.place + many + begins[0], shard.place + many + ends[0])
        assert isinstance(found, np.ndarray)
