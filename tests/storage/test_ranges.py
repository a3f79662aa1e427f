"""Many ranges with few requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.ranges import coalesce, cut_out, cut_span, join_neighbours
from penstock.types import Span

if TYPE_CHECKING:
    from pathlib import Path

spans = st.tuples(st.integers(0, 200), st.integers(0, 40)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))


def test_near_spans_are_joined_and_far_ones_are_not() -> None:
    near = [Span(20, 30), Span(0, 10), Span(31, 32)]
    assert coalesce(near, gap_bytes=10, most_bytes=1000) == [Span(0, 32)]
    assert coalesce(near, gap_bytes=9, most_bytes=1000) == [Span(0, 10), Span(20, 32)]
    assert coalesce(near, gap_bytes=10, most_bytes=30) == [Span(0, 30), Span(31, 32)]
    assert coalesce([Span(0, 100), Span(5, 6)], gap_bytes=0, most_bytes=1) == [Span(0, 100)]
    assert coalesce([Span(3, 3)], gap_bytes=0, most_bytes=1) == []


@given(st.lists(spans), st.integers(0, 50), st.integers(1, 100))
def test_no_byte_is_lost_and_none_is_asked_for_in_vain(wanted: list[Span], gap: int, most: int) -> None:
    joined = coalesce(wanted, gap_bytes=gap, most_bytes=most)
    assert joined == sorted(joined, key=lambda span: span.begin)
    for span in wanted:
        assert not len(span) or any(whole.begin <= span.begin and span.end <= whole.end for whole in joined)
    needed = {byte for span in wanted for byte in range(span.begin, span.end)}
    for whole in joined:
        assert {whole.begin, whole.end - 1} <= needed
        missing = [byte for byte in range(whole.begin, whole.end) if byte not in needed]
        assert all(any(other in needed for other in range(byte, byte + gap + 1)) for byte in missing)


@given(st.lists(spans), st.integers(0, 50), st.integers(1, 100))
def test_each_is_cut_out_of_what_it_was_joined_to(wanted: list[Span], gap: int, most: int) -> None:
    data = bytes(range(256))
    joined = coalesce(wanted, gap_bytes=gap, most_bytes=most)
    found = cut_out(wanted, joined, [data[span.begin : span.end] for span in joined])
    assert [bytes(piece) for piece in found] == [data[span.begin : span.end] for span in wanted]


def test_neighbours_are_joined_in_order_and_others_stay_as_they_are() -> None:
    places = [
        ("a", Span(0, 4)),
        ("a", Span(4, 6)),
        ("a", Span(8, 9)),
        ("b", Span(9, 12)),
        ("b", None),
        ("b", Span(0, 1)),
    ]
    assert join_neighbours(places, most_bytes=6) == [
        (("a", Span(0, 6)), [4, 2]),
        (("a", Span(8, 9)), [1]),
        (("b", Span(9, 12)), [3]),
        (("b", None), [None]),
        (("b", Span(0, 1)), [1]),
    ]
    assert len(join_neighbours(places, most_bytes=5)) == len(places)


def test_pieces_of_a_span(tmp_path: Path) -> None:
    assert cut_span(Span(3, 10), 3) == [Span(3, 6), Span(6, 9), Span(9, 10)]
    assert cut_span(Span(3, 3), 3) == []
