"""Rows of a file of lines, in order. The position is a row and the byte where it begins: going back is a seek.

In a compressed file it is a seek to the frame that the byte is in, which the position names too.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from penstock.errors import CorruptShardError
from penstock.formats.lines.reader import BadRow
from penstock.formats.lines.scan import without_mark
from penstock.order.state_fields import COUNT, refuse
from penstock.sources.files.content import FileContent, dump_frame, frame_before, load_frame
from penstock.sources.files.row_places import RowPlace, RowPlaces
from penstock.sources.iterators import SampleIterator, State, check_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.codecs.stream import FrameStart
    from penstock.formats.lines.find import RowFinder
    from penstock.formats.lines.reader import RowParser
    from penstock.order.state_fields import Fields
    from penstock.sources.files.found import FoundFile
    from penstock.sources.iterators import PositionAfter
    from penstock.types import Int64Array, Sample

    # Makes samples of some rows at once, given the parser, or gives None if it cannot tell that they are right.
    ParseBlock = Callable[[RowParser[Any], "RowBlock"], list[Sample] | None]

OnError = Literal["raise", "skip"]

_PIECE = 1 << 18  # bytes that are looked at together
_ROWS_AT_ONCE = 4096
_FIRST = RowPlace(0, 0, 0)


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
        places: Where some rows begin, if that is known; others are added on the way.
    """

    state_fields: ClassVar[Fields] = {"row": COUNT, "byte?": COUNT, "line?": COUNT}

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
        places: RowPlaces | None = None,
    ) -> None:
        super().__init__()
        self._parse_block = parse_block
        self._file, self._make_finder, self._make_parser = file, make_finder, parser
        self._has_header, self._on_error = has_header, on_error
        self._parser: RowParser[Any] | None = None
        self._header_end: tuple[int, int] | None = None  # in bytes and lines, once it was read
        self._content = FileContent(file)
        self._rows: _Rows | None = None
        self._block: RowBlock | None = None  # that the chunk was made of, if each of its rows is a sample
        self._frames: Sequence[FrameStart] = ()  # from which one may unpack the block, and what comes after it
        self._places = RowPlaces() if places is None else places
        self._row, self._skip = 0, 0  # the next row, and how many to pass over first
        self._place = _FIRST  # where to begin
        self._go_to(check_row(file.url, row, None))

    def close(self) -> None:
        """Close the file."""
        self._rows = None

    def find_cuts(self, num_bytes: int) -> list[State]:
        """Find rows about so many bytes apart. That reads the file, but parses nothing."""
        if self._on_error == "skip" or self._file.compression is not None:
            return []  # a row may be no sample, or finding it may take as long as reading it
        rows = self._begin()
        cuts: list[State] = []
        row, last = 0, self._file.info.num_bytes - num_bytes // 2  # after that, a piece would be small
        while True:
            byte, line = rows.place
            block = rows.take()
            if not block.num_rows:
                return cuts
            if not cuts or cuts[-1]["byte"] + num_bytes <= byte <= last:
                cuts.append({"row": row, "byte": byte, "line": line})
            row += block.num_rows

    def _read_chunk(self) -> list[Sample]:
        rows = self._begin()
        while True:
            block = self._next_rows(rows)
            if not block.num_rows:
                return []
            samples = self._parse(block)
            if samples:
                self._block = block if len(samples) == block.num_rows else None
                return samples

    def _next_rows(self, rows: _Rows) -> RowBlock:
        while True:
            begin, _ = rows.place
            block = rows.take()
            self._frames = self._content.frames_from(begin)
            self._row += block.num_rows
            byte, line = rows.place
            self._places.note(RowPlace(self._row, byte, line, frame_before(self._frames, byte)))
            if block.num_rows > self._skip or not block.num_rows:
                if self._skip and not block.num_rows:
                    check_row(self._file.url, self._row + self._skip, self._row)
                skip, self._skip = self._skip, 0
                return block.without(skip)
            self._skip -= block.num_rows

    def _begin(self) -> _Rows:
        """Open the file where the position says, and read its header if it has one."""
        if self._rows is None:
            if self._parser is None:
                self._parser = self._make_parser(self._read_header() if self._has_header else None)
            _, byte, line, frame = self._place if self._place.row else _FIRST  # before the first row may be a mark
            if not byte and self._header_end is not None:
                byte, line = self._header_end
            if self._has_header and not byte:
                raise CorruptShardError(f"{self._file.url} has no header line", path=self._file.url)
            is_checked = self._is_resumed and byte > frame.content
            content = self._content.read(byte - is_checked, frame)
            content = self._after_line_end(content, byte) if is_checked else content
            if not byte:
                byte, content = without_mark(content, self._file.url)
            self._rows = _Rows(content, self._make_finder(), byte, line)
            self._frames = (frame,)
        return self._rows

    def _after_line_end(self, content: Iterator[bytes], byte: int) -> Iterator[bytes]:
        """Give what comes after the end of a line, which a state says is before a byte."""
        first = next(content, b"")
        for chunk in chain([first[1:]], content):
            if chunk and first[:1] not in (b"\r", b"\n"):
                raise refuse("byte", byte, f"one where a line of {self._file.url} begins")
            yield chunk

    def _read_header(self) -> bytes | None:
        for content in (iter([self._file.head()]), FileContent(self._file).read()):
            begin, rest = without_mark(content, self._file.url)
            head = _Rows(rest, self._make_finder(), begin, 0)
            block = head.take()
            if block.num_rows > 1:  # the only row may be cut
                break
        self._header_end = block.place(1) if block.num_rows > 1 else head.place
        return block.rows()[0] if block.num_rows else None

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
        if self._rows is None and self._skip:
            return {"row": self._row + self._skip}
        if self._rows is None:
            return _dump(self._place)
        byte, line = self._rows.place
        return _dump(RowPlace(self._row, byte, line, frame_before(self._frames, byte)))

    def _positions_in_chunk(self, start: State) -> PositionAfter:
        if self._block is None:
            return super()._positions_in_chunk(start)
        places = self._block._replace(data=b"")  # whoever keeps them need not keep the bytes
        return partial(_row_of_block, places, self._frames, self._row - self._block.num_rows)

    def _seek(self, position: State) -> None:
        self._rows = None
        row, byte, line = position["row"], position.get("byte"), position.get("line") or 0
        if byte is None:
            self._go_to(row)
            return
        self._place = RowPlace(row, byte, line, load_frame(position.get("frame"), self._file.url))
        self._row, self._skip = row, 0
        self._places = RowPlaces()  # others had better not learn from a state

    def _go_to(self, row: int) -> None:
        """Begin at a row, or at the last one before it of which the place is known."""
        self._place = self._places.before(row) or _FIRST
        self._row, self._skip = self._place.row, row - self._place.row


def _row_of_block(block: RowBlock, frames: Sequence[FrameStart], first: int, number: int) -> State:
    byte, line = block.place(number)
    return _dump(RowPlace(first + number, byte, line, frame_before(frames, byte)))


def _dump(place: RowPlace) -> State:
    return {"row": place.row, "byte": place.byte, "line": place.line, **dump_frame(place.frame)}
