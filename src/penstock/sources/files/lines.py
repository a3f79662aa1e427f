"""Rows of a file of lines, in order. The position is a row and the byte where it begins: going back is a seek."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from penstock.errors import CorruptShardError
from penstock.formats.lines.reader import BadRow
from penstock.sources.iterators import SampleIterator, State, check_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.formats.lines.find import RowFinder
    from penstock.formats.lines.reader import RowParser
    from penstock.sources.files.found import FoundFile
    from penstock.sources.iterators import PositionAfter
    from penstock.types import Int64Array, Sample

    # Makes samples of some rows at once, given the parser, or gives None if it cannot tell that they are right.
    ParseBlock = Callable[[RowParser[Any], "RowBlock"], list[Sample] | None]

OnError = Literal["raise", "skip"]

_PIECE = 1 << 18  # bytes that are looked at together
_ROWS_AT_ONCE = 4096


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
        """Give each row by itself."""
        places = (self.bounds - self.bounds[0]).tolist()
        return [self.data[low:high] for low, high in pairwise(places)]

    def without(self, count: int) -> RowBlock:
        """Leave the first rows out."""
        if not count:
            return self
        begin = int(self.bounds[count] - self.bounds[0])
        return RowBlock(self.data[begin:], self.bounds[count:], self.lines[count:], self.first)

    def place(self, number: int) -> tuple[int, int]:
        """Give the byte of the file where a row begins, and how many lines come before it."""
        return self.first + int(self.bounds[number]), int(self.lines[number])


class _Rows:
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
        """Give some rows; none at the end."""
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


class LineIterator(SampleIterator):
    """Samples of a file of lines.

    Args:
        file: The file.
        make_finder: Makes what finds rows.
        parser: Makes samples of rows, given the header row if there is one.
        has_header: Whether the first row is no sample.
        on_error: Whether a row that cannot be parsed is an error, or left out.
        row: Where to begin.
        parse_block: A quicker way than the parser, for rows without a fault.
    """

    def __init__(
        self,
        file: FoundFile,
        make_finder: Callable[[], RowFinder],
        parser: Callable[[bytes | None], RowParser[Any]],
        *,
        has_header: bool = False,
        on_error: OnError = "raise",
        row: int = 0,
        parse_block: ParseBlock | None = None,
    ) -> None:
        super().__init__()
        self._parse_block = parse_block
        self._file, self._make_finder, self._make_parser = file, make_finder, parser
        self._has_header, self._on_error = has_header, on_error
        self._parser: RowParser[Any] | None = None
        self._rows: _Rows | None = None
        self._block: RowBlock | None = None  # that the chunk was made of, if each of its rows is a sample
        check_row(file.url, row, None)
        self._row, self._skip = 0, row  # the next row, and how many to pass over first
        self._place: tuple[int, int] | None = None if row else (0, 0)  # its byte and line, where they are known

    def close(self) -> None:
        """Close the file."""
        self._rows = None

    def find_cuts(self, num_bytes: int) -> list[State]:
        """Find rows about so many bytes apart. That reads the file, but parses nothing."""
        if self._on_error == "skip" or self._file.compression is not None:
            return []  # a row may be no sample, or lie where nobody can seek
        self._begin()
        assert self._rows is not None  # noqa: S101
        cuts: list[State] = []
        row, last = 0, self._file.info.num_bytes - num_bytes // 2  # after that, a piece would be small
        while True:
            byte, line = self._rows.place
            block = self._rows.take()
            if not block.num_rows:
                return cuts
            if not cuts or cuts[-1]["byte"] + num_bytes <= byte <= last:
                cuts.append({"row": row, "byte": byte, "line": line})
            row += block.num_rows

    def _read_chunk(self) -> list[Sample]:
        self._begin()
        while True:
            block = self._next_rows()
            if not block.num_rows:
                return []
            self._row += block.num_rows
            samples = self._parse(block)
            if samples:
                self._block = block if len(samples) == block.num_rows else None
                return samples

    def _next_rows(self) -> RowBlock:
        assert self._rows is not None  # noqa: S101
        while True:
            block = self._rows.take()
            if block.num_rows > self._skip or not block.num_rows:
                if self._skip and not block.num_rows:
                    check_row(self._file.url, self._row + self._skip, self._row)
                skip, self._skip = self._skip, 0
                self._row += skip
                return block.without(skip)
            self._skip -= block.num_rows
            self._row += block.num_rows

    def _begin(self) -> None:
        """Open the file where the position says, and read its header if it has one."""
        if self._rows is not None:
            return
        byte, line = self._place or (0, 0)
        if self._has_header and self._parser is None:
            head = _Rows(iter([self._file.head()]), self._make_finder(), 0, 0)
            block = head.take()
            if block.num_rows < 2:  # the only row may be cut
                head = _Rows(content_from(self._file, 0), self._make_finder(), 0, 0)
                block = head.take()
            self._parser = self._make_parser(block.rows()[0] if block.num_rows else None)
            if not byte:
                byte, line = block.place(1) if block.num_rows > 1 else head.place
        if self._parser is None:
            self._parser = self._make_parser(None)
        if self._has_header and not byte:
            raise CorruptShardError(f"{self._file.url} has no header line", path=self._file.url)
        self._rows = _Rows(content_from(self._file, byte), self._make_finder(), byte, line)

    def _parse(self, block: RowBlock) -> list[Sample]:
        assert self._parser is not None  # noqa: S101
        made = None if self._parse_block is None else self._parse_block(self._parser, block)
        if made is not None:
            return made
        rows = block.rows()
        try:
            return self._parser.samples(self._parser.parse(rows))
        except BadRow:
            pass
        samples: list[Sample] = []
        for number, (row, line) in enumerate(zip(rows, block.lines.tolist(), strict=True)):
            try:
                samples += self._parser.samples(self._parser.parse([row]))
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

    def _positions_in_chunk(self, start: State) -> PositionAfter:
        if self._block is None:
            return super()._positions_in_chunk(start)
        places = self._block._replace(data=b"")  # whoever keeps them need not keep the bytes
        return partial(_row_of_block, places, self._row - self._block.num_rows)

    def _seek(self, position: State) -> None:
        self._rows, self._skip = None, 0
        if "byte" in position:
            self._row, self._place = position["row"], (position["byte"], position["line"])
        else:
            self._row, self._place, self._skip = 0, None, position["row"]


def _row_of_block(block: RowBlock, first: int, number: int) -> State:
    byte, line = block.place(number)
    return {"row": first + number, "byte": byte, "line": line}
