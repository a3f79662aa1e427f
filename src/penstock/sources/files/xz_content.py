"""The content of a .xz file from one of its blocks on, as a stream that has no other blocks."""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from penstock.codecs.stream import decompress_stream
from penstock.codecs.xz_blocks import FOOTER_BYTES, end_bytes, read_end
from penstock.scan.objects import ScannedObject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sources.files.found import FoundFile

_MOST_END_BYTES = 16 << 20  # a million blocks


class ContentFrom(NamedTuple):
    """What a file holds from a byte of its content on."""

    content: int
    chunks: Iterator[bytes]


def read_blocks(file: FoundFile, byte: int) -> ContentFrom | None:
    """Read from the block that a byte of the content is in; None: the file has no such, or not one stream alone."""
    stored = ScannedObject(file.store, file.info)
    size = stored.num_bytes
    num_end = end_bytes(stored.read(max(0, size - FOOTER_BYTES), size))
    if num_end is None or num_end > min(size, _MOST_END_BYTES):
        return None
    stream = read_end(stored.read(size - num_end, size), size)
    if stream is None:
        return None
    starts = stream.starts
    number = bisect_right(starts, byte, hi=len(starts) - 1, key=lambda start: start.content) - 1
    if number <= 0:
        return None
    start, rest = starts[number], stream.without(number)
    blocks = _first(stored.chunks(start.stored), size - num_end - start.stored)
    chunks = chain([rest.header()], blocks, [rest.end()])
    return ContentFrom(start.content, decompress_stream(chunks, "xz", file.url))


def _first(chunks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk[:count]
        count -= len(chunk)
        if count <= 0:
            return
