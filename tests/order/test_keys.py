from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.order.keys import draw, hash_each_key, hash_key, permutation, shuffle_each, sort_groups


def test_keys_tell_words_apart() -> None:
    keys = [
        hash_key(1, 2),
        hash_key(2, 1),
        hash_key(12),
        hash_key("1", 2),
        hash_key("12"),
        hash_key("1, 2"),
        hash_key(1, 2, 0),
        hash_key(-1),
    ]
    assert len(set(keys)) == len(keys)


def test_keys_and_draws_never_change() -> None:
    assert hash_key("layout", 9176, 0, "stream", 0) == 0xC6BBB90AA4A7A89B
    assert draw(7, np.arange(3, dtype=np.uint64)).tolist() == [
        1346066267577507604,
        7191089600892374487,
        309689372594955804,
    ]
    assert permutation(7, 10).tolist() == [2, 0, 9, 6, 8, 1, 5, 7, 4, 3]


@given(key=st.integers(0, 2**64 - 1), size=st.integers(0, 3000))
def test_a_permutation_has_every_number_once(key: int, size: int) -> None:
    assert sorted(permutation(key, size).tolist()) == list(range(size))


@given(key=st.integers(0, 2**64 - 1), sizes=st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_a_group_is_shuffled_the_same_whatever_is_with_it(key: int, sizes: list[int]) -> None:
    together = sort_groups(key, 5, np.array(sizes))
    start = 0
    for number, size in enumerate(sizes):
        alone = sort_groups(key, 5 + number, np.array([size]))
        assert (together[start : start + size] - start == alone).all()
        start += size


@given(first=st.integers(0, 2**40), sizes=st.lists(st.integers(0, 300), min_size=1, max_size=20))
def test_many_keys_and_permutations_at_once_are_those_of_one_at_a_time(first: int, sizes: list[int]) -> None:
    numbers = range(first, first + len(sizes))
    keys = hash_each_key(numbers, "pool", 2**63 + 7)
    assert keys.tolist() == [hash_key("pool", 2**63 + 7, number) for number in numbers]
    rows, is_number = shuffle_each(keys, np.array(sizes))
    for key, size, row, is_here in zip(keys.tolist(), sizes, rows, is_number, strict=True):
        assert row[is_here].tolist() == permutation(key, size).tolist()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_permutations_are_about_equally_likely(size: int) -> None:
    num_draws = 24_000
    seen: dict[tuple[int, ...], int] = {}
    for key in range(num_draws):
        order = tuple(permutation(hash_key(key), size).tolist())
        seen[order] = seen.get(order, 0) + 1
    expected = num_draws / len(seen)
    assert len(seen) == {2: 2, 3: 6, 4: 24}[size]
    # Keys are fixed, so this is arithmetic and not luck: six standard deviations either way.
    assert all(abs(count - expected) < 6 * expected**0.5 for count in seen.values())
