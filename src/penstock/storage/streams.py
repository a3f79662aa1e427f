"""Reading through connections that break: the next one goes on at the byte where the last one stopped, in pieces."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from penstock.errors import RequestRefusedError, StoreError
from penstock.files import atomic_write, os_errors
from penstock.storage.base import check_key, check_version
from penstock.storage.retry import Attempts
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.storage.base import ObjectInfo
    from penstock.storage.retry import RetryHooks, RetryPolicy

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


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """An opened object: what the whole of it is, and the bytes that were asked for, as they arrive.

    Where the object ends before the range does, so do the bytes.
    """

    info: ObjectInfo
    chunks: Iterator[Buffer]


OpenBody: TypeAlias = "Callable[[str, Span], AbstractContextManager[ResponseBody]]"


class ReadsBodies(ABC):
    """The reading half of a store whose objects are opened and read as they arrive."""

    __slots__ = ()

    __match_args__: ClassVar[tuple[str, ...]]  # its settings: a store is a dataclass
    retry: RetryPolicy
    hooks: RetryHooks

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__ if name != "hooks")

    @abstractmethod
    def _open(self, key: str, span: Span) -> AbstractContextManager[ResponseBody]:
        """Ask for a range of an object once. Only errors of ours come out of it, also while the body is read."""

    def _opener(self) -> OpenBody:
        """Return what opens ranges of one version of the store."""
        return self._open

    def read(self, key: str, span: Span | None = None) -> bytes:
        """Return an object or a range of it."""
        return bytes(read_pieces(self, key, span))

    def download(self, key: str, path: Path, span: Span | None = None) -> None:
        """Bring an object, or a range of it, to a local file, which appears whole or not at all."""
        download_pieces(self, key, path, span)

    def read_piece(self, key: str, span: Span, etag: str | None = None) -> tuple[bytearray, ObjectInfo]:
        """Return a range of an object, and what the whole object is."""
        data, info = self._read_up_to(key, span, etag)
        if len(data) != len(span):
            raise RequestRefusedError(f"{key} has {info.num_bytes} bytes and ends before byte {span.end}", key=key)
        return data, info

    def read_first(self, key: str, limit: int) -> tuple[bytearray, ObjectInfo]:
        """Return the first bytes of an object, all of them if it has no more than `limit`, and what it is."""
        return self._read_up_to(key, Span(0, limit), None)

    def _read_up_to(self, key: str, span: Span, etag: str | None) -> tuple[bytearray, ObjectInfo]:
        """Read a range, or what the object has of it, all of one version, through as many connections as it takes."""
        open_body = self._opener()
        attempts = Attempts(self.retry, self.hooks, f"reading {check_key(key)}")
        data = bytearray()
        while True:
            try:
                with open_body(key, Span(span.begin + len(data), span.end)) as body:
                    check_version(key, body.info, etag)
                    etag = body.info.etag
                    for chunk in body.chunks:
                        data += chunk
                        attempts.progressed(memoryview(chunk).nbytes)
                    missing = min(span.end, body.info.num_bytes) - span.begin - len(data)
                    if missing > 0:
                        raise StoreError(f"{key} ended {missing} bytes too early", key=key)
                    return data, body.info
            except StoreError as error:
                attempts.failed(error)
