"""Reading through connections that break: the next one goes on at the byte where the last one stopped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from penstock.errors import RequestRefusedError, StoreError
from penstock.storage.base import check_key, check_version
from penstock.storage.pieces import download_pieces, read_pieces
from penstock.storage.retry import Attempts
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.storage.base import ObjectInfo
    from penstock.storage.retry import RetryHooks, RetryPolicy


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
