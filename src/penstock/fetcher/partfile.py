"""A file on its way: pieces land in any order, and late pieces land nowhere."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer


class PartFile:
    """Written by several threads at once.

    A piece that was given up on may still come: it must not write into whatever file has got the descriptor since.
    So the descriptor lives until its last writer has left. It takes room on the disk as bytes arrive, not before: what
    an index declares is only a claim.
    """

    def __init__(self, path: Path, mode: int) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._writers = 0
        self._is_closed = False
        self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

    def write(self, data: Buffer, begin: int) -> None:
        """Put bytes at their place; nothing happens once the file is closed."""
        with self._lock:
            if self._is_closed:
                return
            self._writers += 1
        try:
            view = memoryview(data).cast("B")
            while len(view):
                written = os.pwrite(self._number, view, begin)
                view, begin = view[written:], begin + written
        finally:
            with self._lock:
                self._writers -= 1
                self._close_if_unused()

    def close(self) -> None:
        """Take no more pieces."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._close_if_unused()

    def discard(self) -> None:
        """Close and remove."""
        self.close()
        with suppress(FileNotFoundError):
            self.path.unlink()

    def _close_if_unused(self) -> None:
        if self._is_closed and not self._writers and self._number >= 0:
            os.close(self._number)
            self._number = -1
