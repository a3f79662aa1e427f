"""The content of a file of lines, cut into its rows while it is read in order."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.formats.lines.find import RowFinder
    from penstock.types import Int64Array

_PIECE = 1 << 18  # bytes that are looked at together
_ROWS_AT_ONCE = 4096


class RowBlock(NamedTuple):
    """Some rows in a row: their bytes, where they begin and end, and how many lines come before each."""

    data: bytes
    bounds: Int64Array  # counted from where reading began
    lines: Int64Array
    first: int  # where reading began, in the file

    @property
    def num_rows(self) -> int:
        """Count the rows."""
        return len(self.bounds) - 1

    def rows(self) -> list[bytes]:
        """Return each row by itself."""
        places = (self.bounds - self.bounds[0]).tolist()
        return [self.data[low:high] for low, high in pairwise(places)]

    def without(self, count: int) -> RowBlock:
        """Leave the first rows out."""
        if not count:
            return self
        begin = int(self.bounds[count] - self.bounds[0])
        return RowBlock(self.data[begin:], self.bounds[count:], self.lines[count:], self.first)

    def place(self, number: int) -> tuple[int, int]:
        """Return the byte of the file where a row begins, and how many lines come before it."""
        return self.first + int(self.bounds[number]), int(self.lines[number])


class RowCutter:
    """Cuts content into rows, from a place where one begins."""

    def __init__(self, content: Iterator[bytes], finder: RowFinder, begin: int, line: int) -> None:
        self._content, self._finder = content, finder
        self._first, self._line = begin, line  # where the content begins, and how many lines come before it
        self._pending = bytearray()  # from where the first row begins that is not given yet
        self._pending_at = 0
        self._begins = np.empty(0, np.int64)
        self._newlines = np.empty(0, np.int64)
        self._chunk, self._chunk_at = memoryview(b""), 0  # of the content, and how much of it was looked at
        self._is_at_end = False

    def take(self) -> RowBlock:
        """Return some rows; none at the end."""
        while len(self._begins) < 2 and not self._is_at_end:
            self._read()
        count = max(0, min(len(self._begins) - (not self._is_at_end), _ROWS_AT_ONCE))
        end = len(self._pending) + self._pending_at
        bounds = np.append(self._begins, end)[: count + 1]
        if not count:
            return RowBlock(b"", bounds[:1], bounds[:0], self._first)
        stop, shift = int(bounds[-1]), self._pending_at
        lines = self._line + np.searchsorted(self._newlines, bounds[:-1])
        with memoryview(self._pending) as pending:
            data = bytes(pending[int(bounds[0]) - shift : stop - shift])
        self._begins = self._begins[count:]
        passed = int(np.searchsorted(self._newlines, stop))
        self._line, self._newlines = self._line + passed, self._newlines[passed:]
        del self._pending[: stop - shift]
        self._pending_at = stop
        return RowBlock(data, bounds, lines, self._first)

    @property
    def place(self) -> tuple[int, int]:
        """Where the next row begins, in bytes and lines of the file."""
        return self._first + self._pending_at, self._line

    def _read(self) -> None:
        if self._chunk_at == len(self._chunk):
            self._chunk, self._chunk_at = memoryview(next((chunk for chunk in self._content if chunk), b"")), 0
            if not self._chunk:
                self._is_at_end = True
                return
        piece = self._chunk[self._chunk_at : self._chunk_at + _PIECE]
        self._chunk_at += len(piece)
        found = self._finder.find(np.frombuffer(piece, np.uint8))
        self._pending += piece
        self._begins = np.concatenate([self._begins, found.begins])
        self._newlines = np.concatenate([self._newlines, found.newlines])
