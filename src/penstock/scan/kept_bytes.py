"""What a scan has read of an object, kept for whoever wants shards of it: nothing has to be fetched twice."""

from __future__ import annotations

import os
import tempfile
import threading
from typing import TYPE_CHECKING, Protocol

from penstock.storage.ranges import join_spans
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.index.files_json import IndexedFile
    from penstock.storage.base import ObjectInfo

_COPY_BYTES = 4 << 20


class ScanKeeper(Protocol):
    """Takes what a scan reads of one object, and makes the shards of it that the scan finds in the end."""

    def write(self, data: bytes, begin: int) -> None:
        """Take bytes, from any thread."""
        ...

    def publish(self, file: IndexedFile) -> None:
        """Make what can be made of the shards."""
        ...

    def close(self) -> None:
        """Forget the rest."""
        ...


class KeptBytes:
    """Bytes of an object, at their places in a file without a name: it is gone with the process that keeps it."""

    def __init__(self, info: ObjectInfo, folder: Path) -> None:
        self.info = info
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._lock = threading.Lock()
        self._spans: list[Span] = []

    def write(self, data: bytes, begin: int) -> None:
        """Take bytes, from any thread."""
        view, at = memoryview(data), begin
        while len(view):
            written = os.pwrite(self._file.fileno(), view, at)
            view, at = view[written:], at + written
        with self._lock:
            self._spans.append(Span(begin, at))

    def holds(self, span: Span) -> bool:
        """Return whether all bytes of a span were written."""
        with self._lock:
            self._spans = join_spans(self._spans)
            return any(each.begin <= span.begin and span.end <= each.end for each in self._spans)

    def copy(self, span: Span, write: Callable[[bytes, int], None]) -> None:
        """Hand over a span, piece by piece, each with its place in the span."""
        for at in range(0, len(span), _COPY_BYTES):
            num_bytes = min(_COPY_BYTES, len(span) - at)
            data = os.pread(self._file.fileno(), num_bytes, span.begin + at)
            if len(data) != num_bytes:
                raise OSError(f"only {len(data)} of {num_bytes} bytes of {self.info.key} could be read again")
            write(data, at)

    def cut(self, end: int) -> None:
        """Release the room of all that lies after a place."""
        os.ftruncate(self._file.fileno(), end)

    def close(self) -> None:
        """Release all room."""
        self._file.close()
