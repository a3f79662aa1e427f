"""A block is the same rows in either form, however it is cut, picked and joined, and knows the position after each."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.blocks.block import Block, join_blocks
from penstock.blocks.stage import row_after
from penstock.errors import MissingColumnError
from penstock.testing.formats import is_same

ROWS = 9


def columnar(first: int, count: int, after: Any = None) -> Block:
    numbers = np.arange(first, first + count)
    columns: dict[str, Any] = {
        "number": numbers,
        "vector": np.stack([numbers, -numbers], axis=1).astype(np.int32),
        "ragged": [np.arange(number % 3, dtype=np.int16) for number in numbers.tolist()],
        "text": [f"t{number}" for number in numbers.tolist()],
    }
    return Block(None, columns, count, after)


def as_samples(first: int, count: int, after: Any = None) -> Block:
    return Block(list(columnar(first, count).samples()), after=after)


@given(st.integers(0, ROWS), st.integers(0, ROWS), st.lists(st.integers(0, ROWS - 1), max_size=5), st.booleans())
def test_both_forms_are_the_same_rows(begin: int, end: int, places: list[int], has_samples: bool) -> None:
    whole = columnar(0, ROWS).samples()
    one, other = columnar(0, ROWS), as_samples(0, ROWS)
    if has_samples:
        one.samples()
    for block in (one, other):
        end = max(begin, end)
        assert is_same(block.cut(begin, end).samples(), whole[begin:end])
        picked = block.pick(np.array(places, np.int64))
        assert len(picked) == len(places)
        assert is_same(picked.samples(), [whole[place] for place in places])
        assert is_same(join_blocks([block.cut(0, begin), block.cut(begin, ROWS)]).samples(), whole)
    assert is_same(join_blocks([one, other]).samples(), [*whole, *whole])


def test_columns_stay_columns_until_samples_are_made() -> None:
    block = join_blocks([columnar(0, 4), columnar(4, 5)]).cut(2, 9).pick(np.array([3, 0]))
    assert block.is_columnar
    assert block.columns()["number"].tolist() == [5, 2]  # type: ignore[union-attr]
    assert [sample["number"] for sample in block.samples()] == [5, 2]
    assert type(block.samples()[0]["number"]) is int
    assert not block.is_columnar


def test_what_a_user_changes_is_not_shared() -> None:
    block = columnar(0, ROWS)
    block.columns()["number"][0] = 7
    cut = block.cut(0, 3)
    cut.samples()[0]["vector"][:] = 7
    assert block.columns()["number"].tolist() == list(range(ROWS))  # type: ignore[union-attr]
    assert block.samples()[0]["vector"].tolist() == [0, 0]


def test_rows_that_were_picked_do_not_hold_on_to_the_others() -> None:
    values = np.arange(10_000)
    block = Block(None, {"part": [values[:2], values[2:5]], "row": values[:4].reshape(2, 2)}, 2)
    picked = block.pick(np.array([1])).samples()
    assert picked[0]["part"].base is None
    assert picked[0]["row"].base.nbytes == picked[0]["row"].nbytes
    again = Block(picked).pick(np.array([0])).samples()
    assert again[0]["part"] is picked[0]["part"]  # it is no part of anything, so no other copy is made


@pytest.mark.parametrize("make", [columnar, as_samples])
def test_positions_go_with_the_rows(make: Any) -> None:
    first, second = make(0, 4, partial(row_after, 100)), make(4, 5, partial(row_after, 200))
    joined = join_blocks([first.cut(1, 9), second])
    assert joined.after is not None
    assert [joined.after(given)["row"] for given in range(9)] == [
        101,
        102,
        103,
        104,
        *range(201, 206),
    ]
    cut = joined.cut(2, 5)
    assert cut.after is not None
    assert [cut.after(given)["row"] for given in range(3)] == [103, 104, 201]
    assert join_blocks([first, make(4, 5)]).after is None
    assert first.at(None).after is None
    assert first.pick(np.array([0])).after is None


def test_columns_that_differ_are_joined_as_samples() -> None:
    joined = join_blocks([Block(None, {"a": np.arange(2)}, 2), Block(None, {"b": np.arange(1)}, 1)])
    assert joined.samples() == [{"a": 0}, {"a": 1}, {"b": 0}]
    with pytest.raises(MissingColumnError, match="some samples of a batch have a, b"):
        joined.columns()
    kinds = [Block(None, {"a": values}, 1) for values in (np.array([1]), np.array([0.5]), [None])]
    assert [sample["a"] for sample in join_blocks(kinds).samples()] == [1, 0.5, None]


def test_blocks_without_rows_or_fields() -> None:
    assert join_blocks([]).samples() == []
    assert Block().columns() == {}
    assert Block(None, {}, 3).samples() == [{}, {}, {}]
