"""Rows of a file of lines, in order. The position is a row and the byte where it begins: going back is a seek."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from penstock.errors import CorruptShardError
from penstock.formats.lines.reader import BadRow
from penstock.sources.iterators import SampleIterator, State, check_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.formats.lines.find import RowFinder
    from penstock.formats.lines.reader import RowParser
    from penstock.sources.files.found import FoundFile
    from penstock.types import Sample

OnError = Literal["raise", "skip"]

_PIECE = 1 << 18  # bytes that are looked at together
_ROWS_AT_ONCE = 1024


def content_from(file: FoundFile, begin: int) -> Iterator[bytes]:
    """Give the content of a file from a byte on; of a compressed one, what comes before is unpacked and left out."""
    opened = file.open()
    if not opened.is_compressed:
        return opened.chunks(begin)
    return _without_first(opened.chunks(), begin)


def _without_first(chunks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for chunk in chunks:
        if count >= len(chunk):
            count -= len(chunk)
            continue
        yield chunk[count:] if count else chunk
        count = 0


class _Rows:
    """Cuts content into rows, from a place where one begins."""

    def __init__(self, content: Iterator[bytes], finder: RowFinder, begin: int, line: int) -> None:
        self._content, self._finder = content, finder
        self._first, self._line = begin, line  # where the content begins, and how many lines come before it
        self._pending = bytearray()  # from where the first row begins that is not given yet
        self._pending_at = 0
        self._begins = np.empty(0, np.int64)
        self._newlines = np.empty(0, np.int64)
        self._piece = b""
        self._is_at_end = False

    def take(self) -> tuple[list[bytes], list[int], list[int]]:
        """Give some rows, where each begins in the file, and before how many lines; nothing at the end."""
        while len(self._begins) < 2 and not self._is_at_end:
            self._read()
        count = min(len(self._begins) - (not self._is_at_end), _ROWS_AT_ONCE)
        if count <= 0:
            return [], [], []
        end = len(self._pending) + self._pending_at
        bounds = [*self._begins[: count + 1].tolist(), end][: count + 1]
        shift = self._pending_at
        with memoryview(self._pending) as pending:
            rows = [bytes(pending[low - shift : high - shift]) for low, high in pairwise(bounds)]
        lines = (self._line + np.searchsorted(self._newlines, bounds[:-1])).tolist()
        self._begins = self._begins[count:]
        passed = int(np.searchsorted(self._newlines, bounds[-1]))
        self._line, self._newlines = self._line + passed, self._newlines[passed:]
        del self._pending[: bounds[-1] - shift]
        self._pending_at = bounds[-1]
        return rows, [self._first + place for place in bounds[:-1]], lines

    @property
    def place(self) -> tuple[int, int]:
        """Where the next row begins, in bytes and lines of the file."""
        return self._first + self._pending_at, self._line

    def _read(self) -> None:
        if not self._piece:
            self._piece = next((chunk for chunk in self._content if chunk), b"")
            if not self._piece:
                self._is_at_end = True
                return
        piece, self._piece = self._piece[:_PIECE], self._piece[_PIECE:]
        found = self._finder.find(np.frombuffer(piece, np.uint8))
        self._pending += piece
        self._begins = np.concatenate([self._begins, found.begins])
        self._newlines = np.concatenate([self._newlines, found.newlines])


class LineIterator(SampleIterator):
    """Samples of a file of lines.

    Args:
        file: The file.
        make_finder: Makes what finds rows.
        parser: Makes samples of rows, given the header row if there is one.
        has_header: Whether the first row is no sample.
        on_error: Whether a row that cannot be parsed is an error, or left out.
        row: Where to begin.
    """

    def __init__(
        self,
        file: FoundFile,
        make_finder: Callable[[], RowFinder],
        parser: Callable[[bytes | None], RowParser],
        *,
        has_header: bool = False,
        on_error: OnError = "raise",
        row: int = 0,
    ) -> None:
        super().__init__()
        self._file, self._make_finder, self._make_parser = file, make_finder, parser
        self._has_header, self._on_error = has_header, on_error
        self._parser: RowParser | None = None
        self._rows: _Rows | None = None
        self._begins: list[int] = []  # of the rows of the chunk
        self._lines: list[int] = []
        check_row(file.url, row, None)
        self._row, self._skip = 0, row  # the next row, and how many to pass over first
        self._place: tuple[int, int] | None = None if row else (0, 0)  # its byte and line, where they are known

    def close(self) -> None:
        """Close the file."""
        self._rows = None

    def _read_chunk(self) -> Sequence[Sample]:
        self._begin()
        while True:
            rows, begins, lines = self._next_rows()
            if not rows:
                return ()
            self._row += len(rows)
            samples = self._parse(rows, lines)
            if samples:
                self._begins, self._lines = (begins, lines) if len(samples) == len(rows) else ([], [])
                return samples

    def _next_rows(self) -> tuple[list[bytes], list[int], list[int]]:
        assert self._rows is not None  # noqa: S101
        while True:
            rows, begins, lines = self._rows.take()
            if len(rows) > self._skip or not rows:
                if not rows and self._skip:
                    check_row(self._file.url, self._row + self._skip, self._row)
                skip, self._skip = self._skip, 0
                self._row += skip
                return rows[skip:], begins[skip:], lines[skip:]
            self._skip -= len(rows)
            self._row += len(rows)
            if not self._skip:
                continue

    def _begin(self) -> None:
        """Open the file where the position says, and read its header if it has one."""
        if self._rows is not None:
            return
        byte, line = self._place or (0, 0)
        if self._has_header and self._parser is None:
            head = _Rows(content_from(self._file, 0), self._make_finder(), 0, 0)
            rows, begins, lines = head.take()
            self._parser = self._make_parser(rows[0] if rows else None)
            if not byte:
                after = (begins[1], lines[1]) if len(rows) > 1 else head.place
                byte, line = after
        if self._parser is None:
            self._parser = self._make_parser(None)
        if self._has_header and not byte:
            raise CorruptShardError(f"{self._file.url} has no header line", path=self._file.url)
        self._rows = _Rows(content_from(self._file, byte), self._make_finder(), byte, line)

    def _parse(self, rows: list[bytes], lines: list[int]) -> list[Sample]:
        assert self._parser is not None  # noqa: S101
        try:
            return self._parser.samples(rows)
        except BadRow:
            pass
        samples: list[Sample] = []
        for number, (row, line) in enumerate(zip(rows, lines, strict=True)):
            try:
                samples += self._parser.samples([row])
            except BadRow as error:
                if self._on_error == "skip":
                    continue
                self._failure = CorruptShardError(
                    f"{self._file.url}, line {line + 1}: {error}", path=self._file.url, line=line + 1
                )
                self._failure.__cause__ = error
                if not number:
                    raise self._failure from error
                break  # what came before it is given first
        return samples

    def _position(self) -> State:
        if self._rows is None:
            place = {} if self._place is None else {"byte": self._place[0], "line": self._place[1]}
            return {"row": self._row + self._skip, **place}
        byte, line = self._rows.place
        return {"row": self._row, "byte": byte, "line": line}

    def _after(self, position: State, given: int) -> State:
        if given < len(self._begins):
            row = position["row"] + given
            return {"row": row, "byte": self._begins[given], "line": self._lines[given]}
        return {**position, "given": given}

    def _seek(self, position: State) -> None:
        self._rows, self._skip = None, 0
        if "byte" in position:
            self._row, self._place = position["row"], (position["byte"], position["line"])
        else:
            self._row, self._place, self._skip = 0, None, position["row"]
