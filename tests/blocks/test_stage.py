"""Positions that count from where a block begins, and going to them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from penstock.blocks.block import Block
from penstock.blocks.stage import counted, open_at_row, resume, skip_rows
from penstock.errors import ResumeError, SampleIndexError
from penstock.sources.iterators import RowStage, SampleIterator


class Threes:
    """Numbers, three in a block; a position is the first of a block."""

    def __init__(self, most: int = 10) -> None:
        self._at, self._most = 0, most

    def next(self) -> Block:
        begin, self._at = self._at, min(self._at + 3, self._most)
        rows = Block([{"x": x} for x in range(begin, self._at)])
        return counted(rows, partial(dict, at=begin), partial(dict, at=self._at))

    def get_state(self) -> dict[str, Any]:
        return {"at": self._at}

    def set_state(self, state: dict[str, Any]) -> None:
        self._at = state["at"]

    def close(self) -> None: ...


@pytest.mark.parametrize("place", range(11))
def test_every_position_is_gone_to(place: int) -> None:
    first, again = SampleIterator(Threes()), SampleIterator(Threes())
    first.take(place)
    state = first.state_dict()
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert [sample["x"] for sample in again] == list(range(place, 10))


def test_what_is_left_of_a_block_comes_back() -> None:
    assert resume(Threes(), {"at": 3, "given": 1}).samples() == [{"x": 4}, {"x": 5}]
    skipped, rest = skip_rows(Threes(), 7)
    assert (skipped, rest.samples()) == (7, [{"x": 7}, {"x": 8}])
    assert skip_rows(Threes(), 20)[0] == 10


def test_rows_that_are_not_there_are_refused() -> None:
    with pytest.raises(ResumeError, match="given=9 instead of a number of samples"):
        resume(Threes(), {"at": 3, "given": 9})
    with pytest.raises(SampleIndexError, match="row 11 of shard 'threes' does not exist"):
        open_at_row(Threes(), "threes", 11)
    assert SampleIterator(open_at_row(RowStage(lambda row: iter([[{"x": row}]])), "one", 1)).take(1) == []
