"""The shards of all streams by number, and rows that came where the index let one expect them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock import MDSWriter, Stream, StreamingDataset
from penstock.reading.shard_table import _pieces_within
from penstock.types import Span

if TYPE_CHECKING:
    from pathlib import Path

GUESS = [Span(10, 20)]


@pytest.mark.parametrize(
    ("spans", "found"),
    [
        ([Span(10, 20)], [b"0123456789"]),
        ([Span(10, 12), Span(15, 20)], [b"01", b"56789"]),
        ([Span(15, 15)], [b""]),
        ([Span(9, 12)], None),
        ([Span(10, 12), Span(19, 21)], None),
    ],
)
def test_rows_within_what_came_need_not_be_read(spans: list[Span], found: list[bytes] | None) -> None:
    assert _pieces_within(spans, GUESS, [b"0123456789"]) == found


def test_of_several_guesses_all_have_to_be_right() -> None:
    guess = [Span(0, 2), Span(4, 6)]
    assert _pieces_within(guess, guess, [b"ab", b"cd"]) == [b"ab", b"cd"]
    assert _pieces_within([Span(0, 2), Span(4, 5)], guess, [b"ab", b"cd"]) is None


def test_shards_of_streams_lie_end_to_end(tmp_path: Path) -> None:
    for name in "ab":
        with MDSWriter(out=tmp_path / name, columns={"id": "int"}, size_limit=200) as writer:
            for number in range(60):
                writer.write({"id": number})
    one = StreamingDataset(local=tmp_path / "a").num_shards
    assert one > 1
    both = StreamingDataset(streams=[Stream(local=tmp_path / name) for name in "ab"])
    assert both.num_shards == 2 * one
    assert [both[number]["id"] for number in (0, 59, 60, 119)] == [0, 59, 0, 59]
