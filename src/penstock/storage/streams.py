"""Reading through connections that break: the next one goes on at the byte where the last one stopped, in pieces."""

from __future__ import annotations

import os
import posixpath
import secrets
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from penstock.errors import RequestRefusedError, StoreError
from penstock.files import PART_SUFFIX, atomic_write, os_errors
from penstock.outside_text import Bounded
from penstock.storage.base import check_key, check_version
from penstock.storage.ranges import PIECE_BYTES, cut_span
from penstock.storage.retry import Attempts, retrying
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.storage.base import ObjectInfo
    from penstock.storage.retry import RetryHooks, RetryPolicy

_PARALLEL = 8
_TOTAL = Bounded(r"bytes (?:\d+-\d+|\*)/(\d+)", 64)
T = TypeVar("T")
SessionT = TypeVar("SessionT")


class ReadsPieces(ABC):
    """A store that reads by pieces: whole objects come as parallel ones of one version."""

    __slots__ = ()

    @abstractmethod
    def read_piece(self, key: str, span: Span, etag: str | None = None) -> tuple[Buffer, ObjectInfo]:
        """Return a range of an object, and what the whole object is."""

    @abstractmethod
    def read_first(self, key: str, limit: int) -> tuple[Buffer, ObjectInfo]:
        """Return the first bytes of an object, all of them if it has no more than `limit`, and what it is."""

    def read(self, key: str, span: Span | None = None) -> bytes:
        """Return an object or a range of it."""
        first, rest, etag = self._begin(key, span)
        if not rest:
            return bytes(first)
        begin = rest[0].begin - memoryview(first).nbytes
        data = bytearray(rest[-1].end - begin)

        def keep(piece: Buffer, at: int) -> None:
            source = memoryview(piece).cast("B")
            memoryview(data)[at - begin : at - begin + len(source)] = source

        keep(first, begin)
        self._fetch(key, rest, etag, keep)
        return bytes(data)

    def download(self, key: str, path: Path, span: Span | None = None) -> None:
        """Bring an object, or a range of it, to a local file, which appears whole or not at all."""
        first, rest, etag = self._begin(key, span)
        with os_errors(path), atomic_write(path) as part, part.open("xb", buffering=0) as file:
            begin = rest[0].begin - memoryview(first).nbytes if rest else 0
            _write_at(file.fileno(), first, 0)
            self._fetch(key, rest, etag, lambda piece, at: _write_at(file.fileno(), piece, at - begin))

    def _begin(self, key: str, span: Span | None) -> tuple[Buffer, list[Span], str | None]:
        """Return the first piece, the spans of the others, and the version that all must be of."""
        if span is None:
            data, info = self.read_first(key, PIECE_BYTES)
            return data, cut_span(Span(0, info.num_bytes))[1:], info.etag
        first, *rest = cut_span(span) or [span]
        data, info = self.read_piece(key, first)
        return data, rest, info.etag

    def _fetch(self, key: str, spans: list[Span], etag: str | None, keep: Callable[[Buffer, int], None]) -> None:
        """Fetch pieces in parallel; the first failure ends the others that have not begun."""
        if not spans:
            return
        pool = ThreadPoolExecutor(min(_PARALLEL, len(spans)), thread_name_prefix="penstock-piece")
        try:
            for _ in pool.map(lambda span: keep(self.read_piece(key, span, etag)[0], span.begin), spans):
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


class ReadsBodies(ReadsPieces, Generic[SessionT]):
    """A store whose objects are opened and read as they arrive: a subclass asks once, and here it is asked again."""

    __slots__ = ()

    __match_args__: ClassVar[tuple[str, ...]]  # its settings: a store is a dataclass
    retry: RetryPolicy
    hooks: RetryHooks

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__ if name != "hooks")

    @abstractmethod
    def _shown(self, key: str = "") -> str:
        """Return how messages name an object, or the root."""

    @abstractmethod
    def _session(self, key: str) -> AbstractContextManager[SessionT]:
        """Lend what asks about an object. Only errors of ours come out of it, whatever goes wrong within."""

    @abstractmethod
    def _describe(self, session: SessionT, key: str) -> ObjectInfo:
        """Ask once what an object is."""

    @abstractmethod
    def _open(self, key: str, span: Span) -> AbstractContextManager[ResponseBody]:
        """Ask for a range of an object once. Only errors of ours come out of it, also while the body is read."""

    def _walk(self, session: SessionT, prefix: str) -> Iterable[ObjectInfo]:
        """Ask once for all objects, but maybe those whose keys do not begin with a prefix."""
        raise NotImplementedError

    def _ask(self, key: str, action: Callable[[SessionT], T], what: str = "") -> T:
        """Do something about an object, or about the root and what of it."""

        def attempt() -> T:
            with self._session(key) as session:
                return action(session)

        return retrying(attempt, self.retry, self.hooks, f"{self._shown(key)}: {what}" if what else self._shown(key))

    def stat(self, key: str) -> ObjectInfo:
        """Describe an object."""
        check_key(key)
        self._prepare()
        return self._ask(key, lambda session: self._describe(session, key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects whose keys begin with a prefix, sorted by key; not what uploads have not brought whole."""
        found = self._ask("", lambda session: list(self._walk(session, prefix)), "the list of files")
        keys = {info.key: info for info in found if not info.key.endswith(PART_SUFFIX)}
        return (keys[key] for key in sorted(keys) if key.startswith(prefix))

    def _prepare(self) -> None:
        """Ask, with a patience of its own, for what every request needs."""

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
        self._prepare()
        attempts = Attempts(self.retry, self.hooks, f"reading {check_key(key)}")
        data = bytearray()
        while True:
            try:
                with self._open(key, Span(span.begin + len(data), span.end)) as body:
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


@contextmanager
def hidden_part(target: str, remove: Callable[[str], object]) -> Iterator[str]:
    """Yield a hidden name beside a target to upload to; what has come there is removed if the block fails."""
    folder, name = posixpath.split(target)
    part = posixpath.join(folder, f".{name}.{secrets.token_hex(4)}{PART_SUFFIX}")
    try:
        yield part
    except BaseException:
        with suppress(Exception):  # the connection may be what failed; hidden names are never listed
            remove(part)
        raise


def cut_chunks(chunks: Iterable[bytes], skip: int, wanted: int) -> Iterator[bytes]:
    """Yield the bytes of a range, also from a server that sends the whole file whatever it is asked for."""
    for chunk in chunks:
        kept = chunk[skip : skip + wanted]
        skip = max(0, skip - len(chunk))
        wanted -= len(kept)
        if kept:
            yield kept
        if not wanted:
            return


def total_bytes(content_range: str | None) -> int | None:
    """Return the size of the whole file that the header of a partial answer tells."""
    found = _TOTAL.fullmatch(content_range or "")
    return int(found.group(1)) if found else None
