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
from penstock.formats.lines.cut import BadRow, RowCutter, RowStart
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from penstock.formats.files import StoredObject
    from penstock.formats.lines.cut import FoundLines, RowFinder

# A shard is fetched, and its lines are found, as a whole: large enough for a store, small enough to wait for.
SPAN_BYTES = 32 << 20
_SMALLEST_SPAN_BYTES = SPAN_BYTES // 8  # of what is left at the end of a file; less goes to the span before
# The reader of a row holds all of it. A longer one is no line of text.
MAX_ROW_BYTES = 256 << 20
# What is kept of the beginning of a file, to see what its rows are.
_HEAD_BYTES = 1 << 20
_FIND_BYTES = 1 << 20  # what is looked at while it is in the processor's cache
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OTHER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


@dataclass(frozen=True, slots=True)
class LineSpan:
    """Some rows of a file that follow one another."""

    begin: RowStart
    end: int
    num_rows: int


class LineScan(NamedTuple):
    """What a scan found: spans, the size of the content, and the first rows with their places."""

    spans: list[LineSpan]
    num_bytes: int
    rows: list[bytes]
    places: list[RowStart]


def scan_lines(file: StoredObject, finder: RowFinder, *, has_header: bool = False) -> LineScan:
    """Read all of a file, and cut it into spans of whole rows, after the header; a compressed one at its frames."""
    first, content = without_mark(file.chunks(), file.name)
    cutter = RowCutter(content, finder, first, 0, most_bytes=MAX_ROW_BYTES)
    spans: list[LineSpan] = []
    rows: list[bytes] = []
    places: list[RowStart] = []
    begin: RowStart | None = None  # of the span in the making
    num_rows = head_bytes = 0
    awaits_header = has_header
    while True:
        try:
            block = cutter.take(copies=head_bytes < _HEAD_BYTES)
        except BadRow as error:
            raise CorruptShardError(
                f"{file.name} has {error}, near line {cutter.place[1] + 1}: it is not a file of lines, or its lines"
                " must be shorter",
                path=file.name,
            ) from None
        if not block.num_rows:
            break
        if head_bytes < _HEAD_BYTES:
            rows += block.rows()
            places += map(block.start, range(block.num_rows))
            head_bytes += len(block.data)
        starts = block.bounds[:-1] + block.first
        at, awaits_header = int(awaits_header), False
        if begin is None and at < len(starts):
            begin = block.start(at)
        while begin is not None:
            place = _cut_after(file, begin.byte + SPAN_BYTES)
            cut = at + int(np.searchsorted(starts[at:], place)) if place is not None else len(starts)
            if cut == len(starts):
                break
            spans.append(LineSpan(begin, int(starts[cut]), num_rows + cut - at))
            begin, at, num_rows = block.start(cut), cut, 0
        num_rows += len(starts) - at
    if begin is not None:
        spans.append(LineSpan(begin, cutter.end, num_rows))
    if len(spans) > 1 and spans[-1].end - spans[-1].begin.byte < _SMALLEST_SPAN_BYTES:
        before, last = spans[-2:]
        spans[-2:] = [LineSpan(before.begin, last.end, before.num_rows + last.num_rows)]
    return LineScan(spans, cutter.end, rows, places)


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


def to_shards(scan: LineScan, file: StoredObject) -> tuple[ScannedShard, ...]:
    """Return what to read of each span; of a compressed file, frames that hold any of its rows."""
    spans = scan.spans
    if not file.is_compressed:
        return tuple(map(_plain, spans))
    # Whatever no row is in, as the header of a CSV file, belongs to the first span or to the last.
    starts = [start.content for start in file.frame_starts] if len(spans) > 1 else []
    return tuple(_framed(span, [0] if span is spans[0] else starts, starts, scan.num_bytes) for span in spans)


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
