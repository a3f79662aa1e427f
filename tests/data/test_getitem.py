"""What stands between the brackets means what it means for a list, or is an error that says what to pass."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.getitem import items_at, nest, resolve_flat, resolve_ids
from penstock.errors import SampleIndexError, SampleKeyError


@given(st.integers(1, 50), st.integers(-60, 60))
def test_numbers_mean_what_they_mean_for_a_list(count: int, number: int) -> None:
    items = list(range(count))
    try:
        expected = items[number]
    except IndexError:
        with pytest.raises(SampleIndexError):
            resolve_ids(number, count)
    else:
        assert resolve_ids(number, count) == expected


def test_keys_of_several_dimensions_are_laid_end_to_end_and_nested_again() -> None:
    key = [[0, -1], [2, 3]]
    ids = resolve_ids(key, 5)
    assert list(ids) == [0, 4, 2, 3]  # type: ignore[arg-type]
    assert nest(["a", "b", "c", "d"], key) == [["a", "b"], ["c", "d"]]
    assert resolve_ids(slice(1, None, 2), 5) == range(1, 5, 2)


def test_items_are_read_together() -> None:
    asked = []

    def read(ids: list[int]) -> list[int]:
        asked.append(ids)
        return [10 * number for number in ids]

    assert items_at(-1, 4, read) == 30  # type: ignore[arg-type]
    assert items_at(np.array([2, 0]), 4, read) == [20, 0]  # type: ignore[arg-type]
    assert asked == [[3], [2, 0]]


@pytest.mark.parametrize("key", ["a", 1.5, [0.5], [[1], [2, 3]], None])
def test_what_is_no_key_is_refused(key: object) -> None:
    with pytest.raises(SampleKeyError):
        resolve_ids(key, 4)


def test_columns_take_no_single_number_and_no_nested_lists() -> None:
    assert list(resolve_flat([1, -1], 4)) == [1, 3]
    for key in (1, [[1]]):
        with pytest.raises(SampleKeyError, match="read_columns takes"):
            resolve_flat(key, 4)
    with pytest.raises(SampleIndexError, match="sample 4 is out of range"):
        resolve_flat([4], 4)
