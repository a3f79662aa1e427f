"""Ranges of objects: cut into pieces, joined, and laid together so that few requests bring many."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

    from penstock.types import Place

PIECE_BYTES = 8 << 20
# A gap of this size costs about as much as a request of its own: some ten milliseconds at 25 MB/s per connection.
DEFAULT_GAP_BYTES = 256 << 10
# What is read in vain may come again with the whole object: it is little of what lies between the first and the last.
_MOST_IN_VAIN = 1 / 32
_MOST_BYTES_IN_VAIN = 512 << 10
_SMALLEST_GAP_BYTES = 1 << 10
RANGES_AT_ONCE = 10  # of one call: obstore asks for the next as one of them comes


def cut_span(span: Span, piece_bytes: int = PIECE_BYTES) -> list[Span]:
    """Cut a span in pieces of equal length, up to the last."""
    begins = range(span.begin, span.end, piece_bytes)
    return [Span(begin, min(begin + piece_bytes, span.end)) for begin in begins]


def cut_object(num_bytes: int) -> list[Span]:
    """Cut an object in pieces; an empty one has a single, empty piece, since reading it tells whether it exists."""
    return [Span(begin, min(begin + PIECE_BYTES, num_bytes)) for begin in range(0, num_bytes or 1, PIECE_BYTES)]


def join_spans(spans: Iterable[Span]) -> list[Span]:
    """Join spans that touch or overlap, and sort them."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda span: span.begin):
        if joined and span.begin <= joined[-1].end:
            joined[-1] = Span(joined[-1].begin, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


def fitting_gap(spans: Sequence[Span]) -> int:
    """Choose the gap to read over: all that are no larger are together a small part of the object, or some packets."""
    ordered = sorted((span for span in spans if len(span)), key=lambda span: span.begin)
    if not ordered:
        return 0
    ends = list(accumulate((span.end for span in ordered), max))
    gaps = sorted(span.begin - end for span, end in zip(ordered[1:], ends, strict=False) if span.begin > end)
    most_bytes = min(_MOST_IN_VAIN * (ends[-1] - ordered[0].begin), _MOST_BYTES_IN_VAIN)
    num_fitting = bisect_right(list(accumulate(gaps)), most_bytes)
    widest = gaps[num_fitting] - 1 if num_fitting < len(gaps) else DEFAULT_GAP_BYTES
    return max(_SMALLEST_GAP_BYTES, min(DEFAULT_GAP_BYTES, widest))


def coalesce(spans: Sequence[Span], *, gap_bytes: int, most_bytes: int) -> list[Span]:
    """Join spans that overlap or lie no further apart than `gap_bytes`, as long as the whole has at most `most_bytes`.

    The answer is sorted, and each span of the question lies within one of it; empty ones are left out. A span that is
    larger than `most_bytes` stays in one piece.
    """
    joined: list[Span] = []
    for span in sorted((span for span in spans if len(span)), key=lambda span: (span.begin, span.end)):
        if joined:
            last = joined[-1]
            end = max(last.end, span.end)
            if span.begin - last.end <= gap_bytes and (end == last.end or end - last.begin <= most_bytes):
                joined[-1] = Span(last.begin, end)
                continue
        joined.append(span)
    return joined


def join_neighbours(places: Sequence[Place], *, most_bytes: int) -> list[tuple[Place, list[int | None]]]:
    """Join ranges of an object of which each begins where the one before ends; with each stretch, the sizes in it.

    The size of a whole object is None.
    """
    joined: list[tuple[Place, list[int | None]]] = []
    for key, span in places:
        if joined and span is not None:
            (last_key, last), sizes = joined[-1]
            if last_key == key and last is not None and last.end == span.begin and span.end - last.begin <= most_bytes:
                sizes.append(len(span))
                joined[-1] = (key, Span(last.begin, span.end)), sizes
                continue
        joined.append(((key, span), [None if span is None else len(span)]))
    return joined


def bundle(spans: Sequence[Span], *, most_bytes: int, num_rounds: int = 1) -> list[list[Span]]:
    """Lay spans together that are asked for by one call, in order: about as many in each.

    Each call asks `num_rounds` times for as many as it can at once: the later ones go over connections that are open.
    """
    num_bytes = sum(map(len, spans))
    num_bundles = max(-(-len(spans) // (num_rounds * RANGES_AT_ONCE)), -(-num_bytes // max(1, most_bytes)))
    size, more = divmod(len(spans), num_bundles) if spans else (0, 0)
    ends = accumulate(size + (number < more) for number in range(num_bundles))
    return [list(spans[begin:end]) for begin, end in pairwise([0, *ends]) if begin < end]


def cut_out(spans: Sequence[Span], joined: Sequence[Span], pieces: Sequence[Buffer]) -> list[memoryview]:
    """Return each span out of the bytes of the joined one that it lies in."""
    views = [memoryview(piece).cast("B") for piece in pieces]
    begins = [span.begin for span in joined]
    found = []
    for span in spans:
        at = bisect_right(begins, span.begin) - 1
        if len(span):
            begin = span.begin - joined[at].begin
            found.append(views[at][begin : begin + len(span)])
        else:
            found.append(memoryview(b""))
    return found
