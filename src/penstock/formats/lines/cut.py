"""Rows of files of lines: newlines are found by NumPy, a chunk at a time, however the chunks are cut."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np

from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from penstock.types import Columns, Int64Array, Sample

    Bytes = npt.NDArray[np.uint8]


NEWLINE, RETURN, SPACE, QUOTE = 10, 13, 32, 34
T = TypeVar("T")

_PIECE = 1 << 18  # bytes that are looked at together
_ROWS_AT_ONCE = 4096


class FoundLines(NamedTuple):
    """What was found in one chunk; numbers count bytes from where the first chunk began."""

    begins: Int64Array  # of rows
    newlines: Int64Array  # all of them, also those within rows

    def __len__(self) -> int:
        return len(self.begins)


class RowFinder(Protocol):
    """Finds the rows of one file or span, which is given to it in order. It begins where a row does."""

    def find(self, chunk: Bytes) -> FoundLines:
        """Return the rows that begin in this chunk; one of which only white space is seen yet, with a later chunk."""


class LineFinder:
    """Every line is a row, or every line that is not blank: of white space alone."""

    def __init__(self, *, skips_blank: bool) -> None:
        self._skips_blank = skips_blank
        self._position = 0
        self._is_new_line = True  # the next byte begins a line
        self._undecided: int | None = None  # where a line begins of which only white space was seen

    def find(self, chunk: Bytes) -> FoundLines:
        """Return the rows that begin in this chunk."""
        base = self._position
        self._position += len(chunk)
        newlines = np.flatnonzero(chunk == NEWLINE)
        begins = self._row_begins(chunk, self._row_ends(chunk, newlines))
        return FoundLines(begins + base, newlines + base)

    def _row_ends(self, chunk: Bytes, newlines: Int64Array) -> Int64Array:  # noqa: ARG002
        """Return which newlines end a row."""
        return newlines

    def _row_begins(self, chunk: Bytes, ends: Int64Array) -> Int64Array:
        begins = ends + 1
        is_new_line = self._is_new_line
        if len(chunk):
            self._is_new_line = bool(len(ends)) and int(begins[-1]) == len(chunk)
        if self._is_new_line:
            begins = begins[:-1]
        if is_new_line and len(chunk):
            begins = np.concatenate([[0], begins])
        return self._without_blank(chunk, begins, ends) if self._skips_blank else begins

    def _without_blank(self, chunk: Bytes, begins: Int64Array, ends: Int64Array) -> Int64Array:
        found = self._decide(chunk, ends)
        first = chunk[begins]
        keeps = first != NEWLINE
        # Of the rest only lines that begin with white space have to be looked at; most of these are \r\n.
        suspects = np.flatnonzero(keeps & (first <= SPACE))
        if len(suspects):
            at = begins[suspects]
            is_return = (chunk[at] == RETURN) & (chunk[np.minimum(at + 1, len(chunk) - 1)] == NEWLINE)
            keeps[suspects[is_return]] = False
            for number in suspects[~is_return].tolist():
                keeps[number] = self._has_more(chunk, int(begins[number]), ends)
        begins = begins[keeps]
        return begins if found is None else np.concatenate([[found], begins])

    def _has_more(self, chunk: Bytes, begin: int, ends: Int64Array) -> bool:
        """Return whether a line is more than white space; where it goes on in the next chunk, put that off."""
        place = int(np.searchsorted(ends, begin))
        end = int(ends[place]) if place < len(ends) else len(chunk)
        if self._is_blank(chunk[begin:end]):
            if place == len(ends):
                self._undecided = self._position - len(chunk) + begin
            return False
        return True

    def _decide(self, chunk: Bytes, ends: Int64Array) -> int | None:
        """Return the place of a line that began before this chunk, if it turns out to be a row, counted from here."""
        if self._undecided is None or not len(chunk):
            return None
        end = int(ends[0]) if len(ends) else len(chunk)
        if not self._is_blank(chunk[:end]):
            found = self._undecided - (self._position - len(chunk))
            self._undecided = None
            return found
        if len(ends):
            self._undecided = None
        return None

    def _is_blank(self, line: Bytes) -> bool:
        return not line.tobytes().strip(b" \t\r")


class QuotedRowFinder(LineFinder):
    """Rows of CSV: a newline ends one if the quotes before it are even in number; lines of nothing are no rows.

    That holds for files that quote as RFC 4180 says: a quote begins a field or ends it, or is doubled within one. Any
    other sets `is_regular` to False, and what was found is worth nothing.
    """

    def __init__(self, separator: int) -> None:
        super().__init__(skips_blank=True)
        self._may_precede = np.zeros(256, np.bool_)
        self._may_precede[[separator, NEWLINE, QUOTE]] = True
        self._may_follow = np.zeros(256, np.bool_)
        self._may_follow[[separator, NEWLINE, RETURN, QUOTE]] = True
        self._is_quoted = False
        self._last = NEWLINE  # the byte before this chunk
        self._ends_field = False  # it is a quote that ended a field, as far as one could see
        self.is_regular = True

    def _row_ends(self, chunk: Bytes, newlines: Int64Array) -> Int64Array:
        if not len(chunk):
            return newlines
        quotes = np.flatnonzero(chunk == QUOTE)
        if self._ends_field:
            self.is_regular &= bool(self._may_follow[chunk[0]])
        self._ends_field = False
        parity = int(self._is_quoted)
        if len(quotes):
            self._check(chunk, quotes, parity)
            newlines = newlines[(np.searchsorted(quotes, newlines) + parity) % 2 == 0]
            self._is_quoted = bool((len(quotes) + parity) % 2)
        elif parity:
            newlines = newlines[:0]
        self._last = int(chunk[-1])
        return newlines

    def _check(self, chunk: Bytes, quotes: Int64Array, parity: int) -> None:
        """See whether every quote stands where RFC 4180 allows one."""
        opening, closing = quotes[parity::2], quotes[1 - parity :: 2]
        before = chunk[np.maximum(opening - 1, 0)]
        if len(opening) and opening[0] == 0:
            before[0] = self._last
        if len(closing) and closing[-1] == len(chunk) - 1:
            self._ends_field = True
            closing = closing[:-1]
        self.is_regular &= bool(self._may_precede[before].all() and self._may_follow[chunk[closing + 1]].all())

    def _is_blank(self, line: Bytes) -> bool:
        return not line.tobytes().strip(b"\r")


class RowStart(NamedTuple):
    """Where a row begins."""

    byte: int
    line: int  # of the file, from 1 on


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

    def start(self, number: int) -> RowStart:
        """Return where a row begins."""
        byte, line = self.place(number)
        return RowStart(byte, line + 1)

    def place(self, number: int) -> tuple[int, int]:
        """Return the byte of the file where a row begins, and how many lines come before it."""
        return self.first + int(self.bounds[number]), int(self.lines[number])


class BadRow(ValueError):  # noqa: N818  readers turn it into an error that says where
    """A row that cannot be parsed, and why: it goes on where the place of the row ends."""


class RowParser(Protocol[T]):
    """Makes values of rows as they are stored. One that equals another makes the same of them."""

    def parse(self, rows: Sequence[bytes]) -> T:
        """Parse rows, all at once; raise `BadRow` if any of them cannot be."""

    def parse_block(self, block: RowBlock) -> T | None:
        """Parse rows that stand one after the other, which is quicker; None if they have to be looked at one by one."""

    def samples(self, parsed: T) -> list[Sample]:
        """Return the samples of all that was parsed."""

    def columns(self, parsed: T, begin: int = 0, end: int | None = None) -> Columns:
        """Return some of it by column: an array where all values allow it, else a list."""


class RowCutter:
    """Cuts content into rows, from a place where one begins."""

    def __init__(
        self, content: Iterator[bytes], finder: RowFinder, begin: int, line: int, most_bytes: int = sys.maxsize
    ) -> None:
        self._content, self._finder, self._most_bytes = content, finder, most_bytes
        self._first, self._line = begin, line  # where the content begins, and how many lines come before it
        self._pending = bytearray()  # from where the first row begins that is not given yet
        self._pending_at = 0
        self._begins = np.empty(0, np.int64)
        self._newlines = np.empty(0, np.int64)
        self._chunk, self._chunk_at = memoryview(b""), 0  # of the content, and how much of it was looked at
        self._is_at_end = False

    def take(self, *, copies: bool = True) -> RowBlock:
        """Return some rows, with or without a copy of their bytes; none at the end."""
        while len(self._begins) < 2 and not self._is_at_end:
            self._read()
        count = max(0, min(len(self._begins) - (not self._is_at_end), _ROWS_AT_ONCE))
        end = len(self._pending) + self._pending_at
        bounds = np.append(self._begins, end)[: count + 1]
        if not count:
            return RowBlock(b"", bounds[:1], bounds[:0], self._first)
        stop, shift = int(bounds[-1]), self._pending_at
        lines = self._line + np.searchsorted(self._newlines, bounds[:-1])
        if (np.diff(bounds) > self._most_bytes).any():
            raise self._too_long()
        with memoryview(self._pending) as pending:
            data = bytes(pending[int(bounds[0]) - shift : stop - shift]) if copies else b""
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

    @property
    def end(self) -> int:
        """How far the content was read, in bytes of the file."""
        return self._first + self._pending_at + len(self._pending)

    def _too_long(self) -> BadRow:
        return BadRow(f"a line of more than {format_bytes(self._most_bytes)}")

    def _read(self) -> None:
        if len(self._pending) > self._most_bytes:
            raise self._too_long()
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
