"""Where rows begin in files of lines: newlines are found by NumPy, a chunk at a time, however the chunks are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.types import Int64Array

    Bytes = npt.NDArray[np.uint8]

NEWLINE, RETURN, SPACE, QUOTE = 10, 13, 32, 34


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
        ...


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
