"""Bytes in memory, and files of stores, as pyarrow reads files, without copies of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from penstock.formats.columnar.arrow_types import pyarrow

if TYPE_CHECKING:
    from pathlib import Path


class Ranges(Protocol):
    """Something of which any range can be read."""

    @property
    def num_bytes(self) -> int:
        """Its size."""
        ...

    def read(self, begin: int, end: int) -> bytes | memoryview:
        """Return the bytes `[begin, end)`."""
        ...


class LocalObject(Ranges, Protocol):
    """An object of a store, which may be a file of this machine."""

    def local_path(self) -> Path | None:
        """Return where it lies, if it is such a file."""
        ...

    def fetch_tail(self, num_bytes: int) -> None:
        """Read its end at once."""
        ...


def open_for_arrow(opened: LocalObject) -> Any:
    """Open a file for Arrow, which reads one of this machine itself, without a copy of the bytes in between."""
    path = opened.local_path()
    return SpansInput(opened) if path is None else pyarrow().OSFile(str(path))


class _Input(ABC):
    """A file to read from, in the words of Python's files; pyarrow asks for `read_buffer` where there is one."""

    closed = False

    @abstractmethod
    def _take(self, size: int) -> bytes | memoryview:
        """Return the next bytes, at most so many; all of them if that is negative."""

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        return bytes(self._take(size))

    def read_buffer(self, size: int = -1) -> Any:
        """Return the next bytes as a buffer of Arrow's, where they lie."""
        return pyarrow().py_buffer(self._take(size))

    def readable(self) -> bool:
        """It is."""
        return True

    def writable(self) -> bool:
        """It is not."""
        return False

    def close(self) -> None:
        """Announce that nobody reads on."""
        self.closed = True


class SpansInput(_Input):
    """A file, or what was fetched of it, at its places there; `tail` is its end, if that is kept elsewhere."""

    def __init__(self, stored: Ranges, tail: bytes = b"") -> None:
        self._stored, self._tail, self._position = stored, memoryview(tail), 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        self._position = max(0, (0, self._position, self._stored.num_bytes)[whence] + offset)
        return self._position

    def tell(self) -> int:
        """Return the place."""
        return self._position

    def seekable(self) -> bool:
        """It is."""
        return True

    def _take(self, size: int) -> bytes | memoryview:
        rest = max(self._stored.num_bytes - self._position, 0)
        if not rest:
            return b""
        begin, end = self._position, self._position + (rest if size < 0 else min(size, rest))
        self._position = end
        tail_begin = self._stored.num_bytes - len(self._tail)
        if tail_begin <= begin < end:
            return self._tail[begin - tail_begin : end - tail_begin]
        return self._stored.read(begin, end)


class PiecesInput(_Input):
    """Bytes in several places, one after the other."""

    def __init__(self, pieces: list[memoryview]) -> None:
        self._pieces = pieces[::-1]

    def seekable(self) -> bool:
        """It is not."""
        return False

    def _take(self, size: int) -> memoryview:
        while self._pieces and not self._pieces[-1]:
            self._pieces.pop()
        if not self._pieces:
            return memoryview(b"")
        piece = self._pieces[-1]
        if not 0 <= size <= len(piece):  # messages lie in one piece, unless one lies about its size
            piece = memoryview(b"".join(self._pieces[::-1]))
            self._pieces = [piece]
            size = min(size, len(piece)) if size >= 0 else len(piece)
        self._pieces[-1] = piece[size:]
        return piece[:size]
