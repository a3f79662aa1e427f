"""Whole objects as parallel pieces of one version."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from penstock.files import atomic_write, os_errors
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.storage.base import ObjectInfo

PIECE_BYTES = 8 << 20
_PARALLEL = 8


class PieceReader(Protocol):
    """A store that reads by pieces."""

    def read_piece(self, key: str, span: Span, etag: str | None = None) -> tuple[Buffer, ObjectInfo]:
        """Return a range of an object, and what the whole object is."""
        ...

    def read_first(self, key: str, limit: int) -> tuple[Buffer, ObjectInfo]:
        """Return the first bytes of an object, and what it is."""
        ...


def cut_span(span: Span, piece_bytes: int = PIECE_BYTES) -> list[Span]:
    """Cut a span in pieces of equal length, up to the last."""
    begins = range(span.begin, span.end, piece_bytes)
    return [Span(begin, min(begin + piece_bytes, span.end)) for begin in begins]


def join_spans(spans: Iterable[Span]) -> list[Span]:
    """Join spans that touch or overlap, and sort them."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda span: span.begin):
        if joined and span.begin <= joined[-1].end:
            joined[-1] = Span(joined[-1].begin, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


def read_pieces(store: PieceReader, key: str, span: Span | None) -> Buffer:
    """Return an object or a range of it, in memory."""
    first, rest, etag = _begin(store, key, span)
    if not rest:
        return first
    begin = rest[0].begin - memoryview(first).nbytes
    data = bytearray(rest[-1].end - begin)
    view = memoryview(data)

    def keep(piece: Buffer, at: int) -> None:
        source = memoryview(piece).cast("B")
        view[at - begin : at - begin + len(source)] = source

    keep(first, begin)
    _fetch(store, key, rest, etag, keep)
    return data


def download_pieces(store: PieceReader, key: str, path: Path, span: Span | None) -> None:
    """Bring an object or a range of it to a file, which appears whole or not at all."""
    first, rest, etag = _begin(store, key, span)
    with os_errors(path), atomic_write(path) as part, part.open("xb", buffering=0) as file:
        begin = rest[0].begin - memoryview(first).nbytes if rest else 0
        _write_at(file.fileno(), first, 0)
        _fetch(store, key, rest, etag, lambda piece, at: _write_at(file.fileno(), piece, at - begin))


def _begin(store: PieceReader, key: str, span: Span | None) -> tuple[Buffer, list[Span], str | None]:
    """Return the first piece, the spans of the others, and the version that all must be of."""
    if span is None:
        data, info = store.read_first(key, PIECE_BYTES)
        span = Span(0, info.num_bytes)
        return data, cut_span(span)[1:], info.etag
    first, *rest = cut_span(span) or [span]
    data, info = store.read_piece(key, first)
    return data, rest, info.etag


def _fetch(
    store: PieceReader, key: str, spans: list[Span], etag: str | None, keep: Callable[[Buffer, int], None]
) -> None:
    """Fetch pieces in parallel; the first failure ends the others that have not begun."""
    if not spans:
        return
    pool = ThreadPoolExecutor(min(_PARALLEL, len(spans)), thread_name_prefix="penstock-piece")
    try:
        for _ in pool.map(lambda span: keep(store.read_piece(key, span, etag)[0], span.begin), spans):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _write_at(descriptor: int, data: Buffer, offset: int) -> None:
    left = memoryview(data).cast("B")
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written
