"""A file of lines → spans of whole rows: how many rows each has, and at which line of the file it begins."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.errors import CorruptShardError, IndexFieldError
from penstock.formats.files import ScannedShard
from penstock.types import Span
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from penstock.formats.files import StoredObject
    from penstock.formats.lines.cut import FoundLines, RowFinder
    from penstock.types import Int64Array

# A shard is fetched, and its lines are found, as a whole: large enough for a store, small enough to wait for.
SPAN_BYTES = 32 << 20
_SMALLEST_SPAN_BYTES = SPAN_BYTES // 8  # of what is left at the end of a file; less goes to the span before
# Whoever reads a row holds all of it. A longer one is no line of text.
MAX_ROW_BYTES = 256 << 20
# What is kept of the beginning of a file, to see what its rows are.
_HEAD_BYTES = 1 << 20
_FIND_BYTES = 1 << 20  # what is looked at while it is in the processor's cache
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OTHER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class RowStart(NamedTuple):
    """Where a row begins."""

    byte: int
    line: int  # of the file, from 1 on


@dataclass(frozen=True, slots=True)
class LineSpan:
    """Some rows of a file that follow one another."""

    begin: RowStart
    end: int
    num_rows: int


class LinesHead(NamedTuple):
    """The first rows of a file, as far as they are whole."""

    rows: list[bytes]
    places: list[RowStart]


class LineScan:
    """Cuts a file into spans while it passes by, and keeps its first rows."""

    def __init__(self, file: StoredObject, finder: RowFinder, *, has_header: bool = False, mark_bytes: int = 0) -> None:
        self.name = file.name
        self._file, self._finder = file, finder
        self._awaits_header = has_header
        self._head = bytearray()
        self._head_begin = 0
        self._head_rows: list[RowStart] = []
        self._line = 1
        self._mark_bytes = self.num_bytes = mark_bytes  # the second: so far
        self._begin: RowStart | None = None  # of the span in the making
        self._num_rows = 0
        self._last_row = 0
        self._spans: list[LineSpan] = []

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the file, after the mark that may begin it."""
        for begin in range(0, len(chunk), _FIND_BYTES):
            self._feed(chunk[begin : begin + _FIND_BYTES])

    def finish(self) -> list[LineSpan]:
        """Return the spans of the whole file."""
        if self._begin is not None:
            self._cut(self._begin, self.num_bytes)
        if len(self._spans) > 1:
            before, last = self._spans[-2:]
            if last.end - last.begin.byte < _SMALLEST_SPAN_BYTES:
                self._spans[-2:] = [LineSpan(before.begin, last.end, before.num_rows + last.num_rows)]
        return self._spans

    def head(self) -> LinesHead:
        """Return the first rows, once all of the file was seen."""
        begins = [max(place.byte - self._head_begin, 0) for place in self._head_rows]
        is_all = self._head_begin + len(self._head) == self.num_bytes
        ends = [*begins[1:], *([len(self._head)] if is_all else [])]
        rows = [bytes(self._head[begin:end]) for begin, end in zip(begins, ends, strict=False)]
        return LinesHead(rows, self._head_rows[: len(rows)])

    def _feed(self, chunk: bytes) -> None:
        found = self._finder.find(np.frombuffer(chunk, np.uint8))
        begins, newlines = found.begins + self._mark_bytes, found.newlines + self._mark_bytes
        self._keep_head(chunk, begins, newlines)
        self.num_bytes += len(chunk)
        self._check_length(begins)
        if self._awaits_header and len(begins):
            self._awaits_header, begins = False, begins[1:]
        at = 0
        if self._begin is None and len(begins):
            self._begin = self._place(int(begins[0]), newlines)
        while self._begin is not None:
            place = _cut_after(self._file, self._begin.byte + SPAN_BYTES)
            cut = at + int(np.searchsorted(begins[at:], place)) if place is not None else len(begins)
            if cut == len(begins):
                break
            self._num_rows += cut - at
            self._cut(self._begin, int(begins[cut]))
            self._begin, at = self._place(int(begins[cut]), newlines), cut
        self._num_rows += len(begins) - at
        self._line += len(newlines)

    def _cut(self, begin: RowStart, end: int) -> None:
        self._spans.append(LineSpan(begin, end, self._num_rows))
        self._num_rows = 0

    def _place(self, byte: int, newlines: Int64Array) -> RowStart:
        return RowStart(byte, self._line + int(np.searchsorted(newlines, byte)))

    def _keep_head(self, chunk: bytes, begins: Int64Array, newlines: Int64Array) -> None:
        if not self._head_rows:
            if not len(begins):
                return
            self._head_begin = max(int(begins[0]), self.num_bytes)
            chunk = chunk[self._head_begin - self.num_bytes :]
        # Of a file whose first row is longer, all of that row.
        if len(self._head) < _HEAD_BYTES or len(self._head_rows) < 2:
            self._head += chunk
            self._head_rows += [self._place(byte, newlines) for byte in begins.tolist()]

    def _check_length(self, begins: Int64Array) -> None:
        bounds = np.concatenate([[self._last_row], begins, [self.num_bytes]])
        if (np.diff(bounds) > MAX_ROW_BYTES).any():
            raise CorruptShardError(
                f"{self.name} has a line of more than {format_bytes(MAX_ROW_BYTES)}, near line {self._line}: it is not"
                " a file of lines, or its lines must be shorter",
                path=self.name,
            )
        if len(begins):
            self._last_row = int(begins[-1])


def scan_lines(file: StoredObject, finder: RowFinder, *, has_header: bool = False) -> tuple[LineScan, list[LineSpan]]:
    """Read all of a file, and cut it into spans of whole rows, after the header; a compressed one at its frames."""
    mark_bytes, chunks = without_mark(file.chunks(), file.name)
    scan = LineScan(file, finder, has_header=has_header, mark_bytes=mark_bytes)
    for chunk in chunks:
        scan.feed(chunk)
    return scan, scan.finish()


def without_mark(chunks: Iterator[bytes], name: str) -> tuple[int, Iterator[bytes]]:
    """Return the length of the byte order mark that a file begins with, or 0, and the chunks of the rest."""
    first = b""
    for chunk in chunks:
        first += chunk
        if len(first) >= len(_BYTE_ORDER_MARK):
            break
    for mark, encoding in _OTHER_MARKS.items():
        if first.startswith(mark):
            raise CorruptShardError(f"{name} is encoded as {encoding}: convert it to UTF-8", path=name)
    mark_bytes = len(_BYTE_ORDER_MARK) if first.startswith(_BYTE_ORDER_MARK) else 0
    return mark_bytes, chain([first[mark_bytes:]], chunks)


def _cut_after(file: StoredObject, byte: int) -> int | None:
    """Return the first place from a byte on after which a new span may begin; None: there is none so far."""
    if not file.is_compressed:
        return byte
    starts = file.frame_starts
    number = bisect_left(starts, byte, key=lambda start: start.content)
    return starts[number].content if number < len(starts) else None


def to_shards(spans: list[LineSpan], file: StoredObject, num_bytes: int) -> tuple[ScannedShard, ...]:
    """Return what to read of each span; of a compressed file of so many bytes, frames that hold any of its rows."""
    if not file.is_compressed:
        return tuple(map(_plain, spans))
    # Whatever no row is in, as the header of a CSV file, belongs to the first span or to the last.
    starts = [start.content for start in file.frame_starts] if len(spans) > 1 else []
    return tuple(_framed(span, [0] if span is spans[0] else starts, starts, num_bytes) for span in spans)


def _plain(span: LineSpan) -> ScannedShard:
    begin, end = span.begin.byte, span.end
    return ScannedShard(span.num_rows, Span(begin, end), end - begin, details=dump_details(0, span.begin.line))


def _framed(span: LineSpan, begins: Sequence[int], ends: Sequence[int], num_bytes: int) -> ScannedShard:
    """Rows need not end where frames do: what belongs to others is left out by the reader."""
    begin = begins[bisect_right(begins, span.begin.byte) - 1]
    after = bisect_left(ends, span.end)
    end = ends[after] if after < len(ends) else num_bytes
    details = dump_details(span.begin.byte - begin, span.begin.line, end - span.end)
    return ScannedShard(span.num_rows, Span(begin, end), end - begin, details=details)


class SpanDetails(NamedTuple):
    """What a reader of a shard has to know: how many bytes to leave out before its rows and after them, their line."""

    skip: int = 0
    line: int = 1
    leave: int = 0


def dump_details(skip: int, line: int, leave: int = 0) -> bytes:
    """Write what a reader has to know."""
    return json.dumps([skip, line, leave] if leave else [skip, line]).encode()


def load_details(details: bytes, shard: str) -> SpanDetails:
    """Read what a scan left for the reader of a shard."""
    try:
        found = SpanDetails(*json.loads(details)) if details else SpanDetails()
        if all(type(each) is int for each in found) and found.skip >= 0 and found.leave >= 0:
            return found
    except (ValueError, TypeError):
        pass
    raise IndexFieldError(f"the index has wrong details for {shard}: make it again with penstock index")


def find_rows(array: npt.NDArray[np.uint8], skip: int, finder: RowFinder) -> npt.NDArray[np.unsignedinteger]:
    """Find where each row of a span begins, and where the last one ends."""
    kind = np.uint32 if len(array) < 1 << 32 else np.uint64  # they stay in memory: 4 bytes a row
    begins = [(found.begins + skip).astype(kind) for found in _find_all(array[skip:], finder)]
    return np.concatenate([*begins, np.array([len(array)], kind)])


def _find_all(array: npt.NDArray[np.uint8], finder: RowFinder) -> Iterator[FoundLines]:
    for begin in range(0, len(array), _FIND_BYTES):
        yield finder.find(array[begin : begin + _FIND_BYTES])
