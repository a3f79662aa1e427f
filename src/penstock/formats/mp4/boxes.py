"""The boxes that an mp4 file is made of: where each one is, and how one is written."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.types import Int64Array

HEAD_BYTES = 8
WIDE_BYTES = 16
MAX_MOOV_BYTES = 1 << 28


class Box(NamedTuple):
    """What kind a box is, and where its content lies."""

    kind: bytes
    begin: int
    end: int


def head_of(head: bytes, left: int) -> tuple[bytes, int, int]:
    """Return kind, size and length of the head of a box by its first bytes; `left` bytes lie from there to the end."""
    size, kind, begin = int.from_bytes(head[:4], "big"), head[4:8], HEAD_BYTES
    if size == 1:
        size, begin = int.from_bytes(head[8:16], "big"), WIDE_BYTES
    elif size == 0:
        size = left
    if size < begin or size > left:
        raise ValueError(f"the box {kind!r} has a size of {size}")
    return kind, size, begin


def find_moov(read: Callable[[int, int], bytes], num_bytes: int) -> Box | None:
    """Find the box that describes a file, whether it comes before the data or after them; None: in no simple way."""
    offset = 0
    while offset + HEAD_BYTES <= num_bytes:
        try:
            kind, size, begin = head_of(read(offset, min(offset + WIDE_BYTES, num_bytes)), num_bytes - offset)
        except ValueError:
            return None
        if kind == b"moof":
            return None
        if kind == b"moov":
            return Box(kind, offset + begin, offset + size) if size <= MAX_MOOV_BYTES else None
        offset += size
    return None


def boxes(data: bytes, begin: int, end: int) -> Iterator[Box]:
    """Find the boxes within a part of some bytes."""
    while begin + HEAD_BYTES <= end:
        kind, size, head = head_of(data[begin : begin + WIDE_BYTES], end - begin)
        yield Box(kind, begin + head, begin + size)
        begin += size


def find(data: bytes, box: Box, *kinds: bytes) -> Box | None:
    """Find a box in a box, and one in that, by their kinds."""
    for kind in kinds:
        inside = next((each for each in boxes(data, box.begin, box.end) if each.kind == kind), None)
        if inside is None:
            return None
        box = inside
    return box


def child(data: bytes, box: Box, *kinds: bytes) -> Box:
    """Find the same where it must be."""
    found = find(data, box, *kinds)
    if found is None:
        raise ValueError(f"there is no box {kinds[-1]!r}")
    return found


def table(data: bytes, box: Box, num_columns: int) -> Int64Array:
    """Return a table of 32-bit numbers, without their sign; its size comes before it."""
    count = number(data, box.begin + 4)
    if box.end - box.begin < 8 + 4 * count * num_columns:
        raise ValueError("a table is cut off")
    values = np.frombuffer(data, ">u4", count * num_columns, box.begin + 8)
    return values.reshape(count, num_columns).astype(np.int64)


def number(data: bytes, at: int, num_bytes: int = 4) -> int:
    """Return a number without a sign."""
    return int.from_bytes(data[at : at + num_bytes], "big")


# --- Writing ------------------------------------------------------------------------------------------------------


def make_box(kind: bytes, *contents: bytes) -> bytes:
    """Return a box with these contents."""
    return struct.pack(">I4s", HEAD_BYTES + sum(map(len, contents)), kind) + b"".join(contents)


def make_table(kind: bytes, values: Int64Array) -> bytes:
    """Return a box with a table of 32-bit numbers, one row for each of the first dimension."""
    return make_box(kind, struct.pack(">II", 0, len(values)), (values & 0xFFFFFFFF).astype(">u4").tobytes())
