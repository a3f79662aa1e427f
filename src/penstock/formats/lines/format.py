"""Formats of lines: any rows by number, and blocks in order, with one finder and one parser of each.

In order, the position is a row and the byte where it begins, so going back is a seek: in a compressed file to the
frame that the byte is in, which the position names too.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from penstock.blocks.block import Block
from penstock.blocks.stage import check_row
from penstock.codecs.stream import FrameStart
from penstock.errors import CorruptShardError, IndexFieldError
from penstock.formats.content import RowPlace, RowPlaces, dump_frame, frame_before, load_frame
from penstock.formats.files import FileFormat
from penstock.formats.lines.cut import BadRow, RowCutter
from penstock.formats.lines.reader import LineReader, OpenSpan
from penstock.formats.lines.scan import load_details, without_mark
from penstock.order.state_fields import COUNT, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.blocks.stage import Stage, State
    from penstock.formats.base import ReadOptions
    from penstock.formats.content import FileContent
    from penstock.formats.files import FileBytes, FilesReading
    from penstock.formats.lines.cut import RowBlock, RowFinder, RowParser
    from penstock.index.files_json import IndexedFile
    from penstock.index.shards import Column, IndexedShard
    from penstock.order.state_fields import Fields
    from penstock.types import Sample


def places_in(file: IndexedFile) -> list[RowPlace]:
    """Return where the shards begin that an index names in a file of lines."""
    places: list[RowPlace] = []
    row = begin = 0
    for shard in file.shards:
        details = load_details(shard.details, file.name)
        if file.layout.compression is None:
            places.append(RowPlace(row, shard.begin + details.skip, details.line - 1))
        else:
            # Frames may lie in two shards, but rows lie in one: these begin where those of the shard before end.
            content = begin - details.skip if places else 0
            places.append(RowPlace(row, content + details.skip, details.line - 1, FrameStart(shard.begin, content)))
            begin = content + shard.raw_bytes - details.leave
        row += shard.num_samples
    are_below = any(place.frame.content < 0 or place.line < 0 for place in places)
    if are_below or any(later.byte < place.byte for place, later in pairwise(places)):
        raise IndexFieldError(f"the index has wrong details for {file.name}: make it again with penstock index")
    return places


_FIRST = RowPlace(0, 0, 0)


class LineFormat(FileFormat, Protocol):
    """A format of lines: its rows are found and parsed in one way, by number and in order."""

    has_header: bool = False  # the first row is no sample

    def finder(self, settings: Mapping[str, Any]) -> RowFinder:
        """Return what finds the rows of a file, or of a span of which a scan said this."""

    def parser(self, columns: tuple[Column, ...], wanted: tuple[str, ...] | None) -> RowParser[Any]:
        """Return what makes samples of rows."""

    def parser_in_order(self, name: str, header: bytes | None, reading: FilesReading) -> RowParser[Any]:
        """Return the same for a file with this header row that is read in order."""

    def open(self, parts: Sequence[FileBytes], info: IndexedShard, options: ReadOptions) -> LineReader:
        """Open a span of rows."""
        self.check(info.layout, options)
        parser = self.parser(info.layout.columns, options.columns)
        return LineReader(parts, OpenSpan(parts[0], info, self.finder(info.layout.settings)), parser)

    def blocks(self, file: FileContent, reading: FilesReading, row: int = 0) -> Stage:
        """Read a file in order."""
        return LineBlocks(file, self, reading, row)


class LineBlocks:
    """The samples of a file of lines, from a row on."""

    state_fields: ClassVar[Fields] = {"row": COUNT, "byte?": COUNT, "line?": COUNT}

    def __init__(self, content: FileContent, form: LineFormat, reading: FilesReading, row: int = 0) -> None:
        self._content, self._form, self._reading = content, form, reading
        self._name = content.name
        self._parser: RowParser[Any] | None = None
        self._header_end: tuple[int, int] | None = None  # in bytes and lines, once it was read
        self._rows: RowCutter | None = None
        self._frames: Sequence[FrameStart] = ()  # from which one may unpack the rows, and what comes after them
        self._places = reading.places_in(content.name)  # others are added on the way
        self._row, self._skip = 0, 0  # the next row, and how many to pass over first
        self._place = _FIRST  # where to begin
        self._is_resumed = False  # and nothing was read since
        self._failure: CorruptShardError | None = None  # of the row after those that were given
        self._go_to(check_row(self._name, row, None))

    def close(self) -> None:
        """Close the file."""
        self._rows = None

    def find_cuts(self, num_bytes: int) -> list[State]:
        """Find rows about so many bytes apart. That reads the file, but parses nothing."""
        if self._reading.on_error == "skip" or self._content.compression is not None:
            return []  # a row may be no sample, or finding it may take as long as reading it
        rows = self._begin()
        cuts: list[State] = []
        row, last = 0, self._content.num_stored - num_bytes // 2  # after that, a piece would be small
        while True:
            byte, line = rows.place
            block = rows.take()
            if not block.num_rows:
                return cuts
            if not cuts or cuts[-1]["byte"] + num_bytes <= byte <= last:
                cuts.append({"row": row, "byte": byte, "line": line})
            row += block.num_rows

    def next(self) -> Block:
        """Read the next rows of which there is a sample."""
        if self._failure is not None:
            raise self._failure
        rows = self._begin()
        while True:
            found = self._next_rows(rows)
            self._is_resumed = False
            samples = self._parse(found)
            if len(samples) == found.num_rows:
                places = found._replace(data=b"")  # the bytes are not needed to know them
                first = self._row - found.num_rows
                return Block(samples, after=partial(_row_of_block, places, self._frames, first))
            if samples:
                return Block(samples)

    def _next_rows(self, rows: RowCutter) -> RowBlock:
        while True:
            begin, _ = rows.place
            block = rows.take()
            self._frames = self._content.frames_from(begin)
            self._row += block.num_rows
            byte, line = rows.place
            self._places.note(RowPlace(self._row, byte, line, frame_before(self._frames, byte)))
            if block.num_rows > self._skip or not block.num_rows:
                if self._skip and not block.num_rows:
                    check_row(self._name, self._row + self._skip, self._row)
                skip, self._skip = self._skip, 0
                return block.without(skip)
            self._skip -= block.num_rows

    def _begin(self) -> RowCutter:
        """Open the file where the position says, and read its header if it has one."""
        if self._rows is None:
            if self._parser is None:
                header = self._read_header() if self._form.has_header else None
                self._parser = self._form.parser_in_order(self._name, header, self._reading)
            _, byte, line, frame = self._place if self._place.row else _FIRST  # before the first row may be a mark
            if not byte and self._header_end is not None:
                byte, line = self._header_end
            if self._form.has_header and not byte:
                raise CorruptShardError(f"{self._name} has no header line", path=self._name)
            is_checked = self._is_resumed and byte > frame.content
            content = self._content.read(byte - is_checked, frame)
            content = self._after_line_end(content, byte) if is_checked else content
            if not byte:
                byte, content = without_mark(content, self._name)
            self._rows = RowCutter(content, self._form.finder({}), byte, line)
            self._frames = (frame,)
        return self._rows

    def _after_line_end(self, content: Iterator[bytes], byte: int) -> Iterator[bytes]:
        """Yield what comes after the end of a line, which a state says is before a byte."""
        first = next(content, b"")
        for chunk in chain([first[1:]], content):
            if chunk and first[:1] not in (b"\r", b"\n"):
                raise refuse("byte", byte, f"one where a line of {self._name} begins")
            yield chunk

    def _read_header(self) -> bytes | None:
        for content in (iter([self._content.head()]), self._content.read()):
            begin, rest = without_mark(content, self._name)
            head = RowCutter(rest, self._form.finder({}), begin, 0)
            block = head.take()
            if block.num_rows > 1:  # the only row may be cut
                break
        self._header_end = block.place(1) if block.num_rows > 1 else head.place
        return block.rows()[0] if block.num_rows else None

    def _parse(self, block: RowBlock) -> list[Sample]:
        if not block.num_rows:
            return []
        assert self._parser is not None  # noqa: S101
        try:
            parsed = self._parser.parse_block(block)
            return self._parser.samples(self._parser.parse(block.rows()) if parsed is None else parsed)
        except BadRow:
            pass
        samples: list[Sample] = []
        for row, line in zip(block.rows(), block.lines.tolist(), strict=True):
            try:
                samples += self._parser.samples(self._parser.parse([row]))
            except BadRow as error:
                if self._reading.on_error == "skip":
                    continue
                where = f"{self._name}, line {line + 1}"
                self._failure = CorruptShardError(f"{where}: {error}", path=self._name, line=line + 1)
                self._failure.__cause__ = error
                if not samples:
                    raise self._failure from error
                break  # what came before it is given first
        return samples

    def get_state(self) -> State:
        """Return where the next row begins."""
        if self._rows is None and self._skip:
            return {"row": self._row + self._skip}
        if self._rows is None:
            return _dump(self._place)
        byte, line = self._rows.place
        return _dump(RowPlace(self._row, byte, line, frame_before(self._frames, byte)))

    def set_state(self, state: State) -> None:
        """Go to a row, and to the byte where it begins if the state tells."""
        self._rows, self._failure, self._is_resumed = None, None, True
        row, byte, line = state["row"], state.get("byte"), state.get("line") or 0
        if byte is None:
            self._go_to(row)
            return
        self._place = RowPlace(row, byte, line, load_frame(state.get("frame"), self._name))
        self._row, self._skip = row, 0
        self._places = RowPlaces()  # what a state says is not told to others

    def _go_to(self, row: int) -> None:
        """Begin at a row, or at the last one before it of which the place is known."""
        self._place = self._places.before(row) or _FIRST
        self._row, self._skip = self._place.row, row - self._place.row


def _row_of_block(block: RowBlock, frames: Sequence[FrameStart], first: int, number: int) -> State:
    byte, line = block.place(number)
    return _dump(RowPlace(first + number, byte, line, frame_before(frames, byte)))


def _dump(place: RowPlace) -> State:
    return {"row": place.row, "byte": place.byte, "line": place.line, **dump_frame(place.frame)}
