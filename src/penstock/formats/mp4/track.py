"""The video track of an mp4 file: when each frame is shown, which are keyframes, where their bytes are.

All that is read is tables of numbers, from the `moov` box: no packet is touched. What these tables cannot tell in a
simple way (fragmented files, several edits) is left to readers of the packets.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.errors import CorruptShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

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


_VIDEO = b"vide"


@dataclass(frozen=True, eq=False)
class FrameIndex:
    """The frames of a video in the order in which they are shown, counted from 0."""

    ticks: Int64Array  # when each is shown; ascending
    tick_s: float  # how long a tick is, in seconds
    keyframes: Int64Array  # the frames that can be decoded without others; ascending
    sizes: Int64Array | None = None  # the bytes of each, if they are known

    @classmethod
    def of(
        cls, ticks: Int64Array, is_key: npt.NDArray[np.bool_], tick_s: float, sizes: Int64Array | None = None
    ) -> FrameIndex:
        """Sort the frames of a file, which are stored in the order in which they are decoded."""
        order = np.argsort(ticks, kind="stable")
        return cls(ticks[order], tick_s, np.flatnonzero(is_key[order]), None if sizes is None else sizes[order])

    def __len__(self) -> int:
        return len(self.ticks)

    @cached_property
    def times(self) -> npt.NDArray[np.float64]:
        """When each is shown, in seconds."""
        return np.multiply(self.ticks, self.tick_s, dtype=np.float64)

    def nearest(self, seconds: npt.NDArray[np.float64]) -> tuple[Int64Array, npt.NDArray[np.float64]]:
        """Return for each time the frame shown nearest to it, and how far off that is in seconds."""
        times = self.times
        after = np.minimum(np.maximum(times.searchsorted(seconds), 1), len(times) - 1)
        before = np.maximum(after - 1, 0)
        until, since = np.abs(times[after] - seconds), np.abs(times[before] - seconds)
        is_before = since <= until
        return np.where(is_before, before, after).astype(np.int64), np.where(is_before, since, until)

    def num_bytes(self, frames: Int64Array) -> int:
        """Return how many bytes some frames have in the file; 0 if that is not known."""
        return 0 if self.sizes is None else int(self.sizes[frames].sum())

    def keyframe_of(self, frames: Int64Array) -> Int64Array:
        """Return the place in `keyframes` of the one that each frame is decoded from."""
        return np.maximum(np.searchsorted(self.keyframes, frames, side="right") - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoTrack:
    """The packets of a video, in the order in which they are stored and decoded."""

    timescale: int  # ticks of a second
    decoded: Int64Array  # the tick at which each is decoded
    shifts: Int64Array  # how many ticks later each is shown
    start: int  # the tick at which the video begins to be shown
    is_key: npt.NDArray[np.bool_]
    sizes_at: int  # where in the file the table of their sizes begins
    moov: bytes
    trak: Box

    @property
    def shown(self) -> Int64Array:
        """When each is shown, from the beginning of the video."""
        return self.decoded + self.shifts - self.start

    @property
    def index(self) -> FrameIndex:
        """The frames in the order in which they are shown."""
        sizes = _sizes(self.moov, child(self.moov, self.trak, b"mdia", b"minf", b"stbl", b"stsz"))
        return FrameIndex.of(self.shown, self.is_key, 1 / self.timescale, sizes)

    def content(self, *kinds: bytes) -> bytes:
        """Return the content of a box of the track."""
        box = child(self.moov, self.trak, *kinds)
        return self.moov[box.begin : box.end]

    def places(self) -> tuple[Int64Array, Int64Array] | None:
        """Return where in the file the bytes of each packet begin, and how many there are; None: in no simple way."""
        stbl = child(self.moov, self.trak, b"mdia", b"minf", b"stbl")
        sizes = _sizes(self.moov, child(self.moov, stbl, b"stsz"))
        if number(self.moov, child(self.moov, stbl, b"stsd").begin + 4) != 1:
            return None
        runs = table(self.moov, child(self.moov, stbl, b"stsc"), 3)
        chunks = _chunk_offsets(self.moov, stbl)
        ends = np.append(runs[1:, 0] - 1, len(chunks))
        lengths = ends - (runs[:, 0] - 1)
        if not len(runs) or runs[0, 0] != 1 or (lengths < 0).any() or int((lengths * runs[:, 1]).sum()) != len(sizes):
            raise ValueError("the table of chunks does not fit the others")
        counts = np.repeat(runs[:, 1], lengths)
        before = np.cumsum(sizes) - sizes
        firsts = np.cumsum(counts) - counts
        has_any = counts > 0
        shift = chunks[has_any] - before[firsts[has_any]]
        return before + np.repeat(shift, counts[has_any]), sizes


def parse_track(moov: bytes, moov_at: int, where: str) -> VideoTrack | None:
    """Read the first video track of a file from its `moov` box, which begins at a byte; None: not so simple."""
    whole = Box(b"moov", 0, len(moov))
    try:
        for trak in boxes(moov, whole.begin, whole.end):
            if trak.kind != b"trak":
                continue
            hdlr = child(moov, trak, b"mdia", b"hdlr")
            if moov[hdlr.begin + 8 : hdlr.begin + 12] == _VIDEO:
                return _parse(moov, moov_at, trak)
    except _NotSimple:
        return None
    except (IndexError, ValueError) as error:
        raise CorruptShardError(f"{where} has a damaged moov box: {error}", file=where) from error
    return None


def read_frame_index(path: str) -> FrameIndex | None:
    """Read when the frames of the first video of an mp4 file are shown; None if its tables do not tell that simply."""
    with Path(path).open("rb") as file:

        def read(begin: int, end: int) -> bytes:
            file.seek(begin)
            return file.read(end - begin)

        box = find_moov(read, file.seek(0, 2))
        track = None if box is None else parse_track(read(box.begin, box.end), box.begin, path)
    return None if track is None else track.index


class _NotSimple(Exception):  # noqa: N818  not an error: others know how to read it
    """The tables of this file do not tell all that is needed."""


def _parse(moov: bytes, moov_at: int, trak: Box) -> VideoTrack:
    stbl = child(moov, trak, b"mdia", b"minf", b"stbl")
    durations = table(moov, child(moov, stbl, b"stts"), 2)
    stsz = child(moov, stbl, b"stsz")
    num_packets = _count_packets(moov, stsz)
    if num_packets != int(durations[:, 0].sum()):
        raise _NotSimple
    each = np.repeat(durations[:, 1], durations[:, 0])
    decoded = np.cumsum(each) - each
    is_key = np.zeros(num_packets, np.bool_)
    keys = find(moov, stbl, b"stss")
    if keys is None:
        is_key[:] = True
    else:
        is_key[table(moov, keys, 1)[:, 0] - 1] = True
    if not is_key.any():  # nor if there are no frames
        raise _NotSimple
    shifts = _shifts(moov, stbl, num_packets)
    mdhd = child(moov, trak, b"mdia", b"mdhd")
    timescale = number(moov, mdhd.begin + (20 if moov[mdhd.begin] == 1 else 12))
    if not timescale:
        raise ValueError("a second has no ticks")
    return VideoTrack(
        timescale=timescale,
        decoded=decoded,
        shifts=shifts,
        start=_edited_start(moov, trak, decoded + shifts),
        is_key=is_key,
        sizes_at=moov_at + stsz.begin + 12,
        moov=moov,
        trak=trak,
    )


def _count_packets(moov: bytes, stsz: Box) -> int:
    """Count the packets; a table that is not there, or packets of one size, are left to others."""
    if number(moov, stsz.begin + 4):
        raise _NotSimple
    count = number(moov, stsz.begin + 8)
    if stsz.end - stsz.begin < 12 + 4 * count:
        raise ValueError("the table of frame sizes is cut off")
    return count


def _sizes(moov: bytes, stsz: Box) -> Int64Array:
    return np.frombuffer(moov, ">u4", _count_packets(moov, stsz), stsz.begin + 12).astype(np.int64)


def _shifts(moov: bytes, stbl: Box, num_packets: int) -> Int64Array:
    """Return how much later than it is decoded each packet is shown."""
    box = find(moov, stbl, b"ctts")
    if box is None:
        return np.zeros(num_packets, np.int64)
    runs = table(moov, box, 2)
    if int(runs[:, 0].sum()) != num_packets:
        raise ValueError("two tables speak of different numbers of frames")
    # Shifts may be negative, whatever the version of the box says.
    return np.repeat(runs[:, 1].astype(np.uint32).view(np.int32).astype(np.int64), runs[:, 0])


def _chunk_offsets(moov: bytes, stbl: Box) -> Int64Array:
    narrow = find(moov, stbl, b"stco")
    if narrow is not None:
        return table(moov, narrow, 1)[:, 0]
    wide = table(moov, child(moov, stbl, b"co64"), 2)
    return (wide[:, 0] << 32) + wide[:, 1]


def _edited_start(moov: bytes, trak: Box, shown: Int64Array) -> int:
    """Return the tick at which the video begins to be shown; only one edit, of all frames, is simple."""
    elst = find(moov, trak, b"edts", b"elst")
    if elst is None:
        return 0
    is_wide = moov[elst.begin] == 1
    if number(moov, elst.begin + 4) != 1:
        raise _NotSimple
    at, width = elst.begin + (16 if is_wide else 12), 8 if is_wide else 4
    start = int.from_bytes(moov[at : at + width], "big", signed=True)
    if start < 0 or start > int(shown.min()):
        raise _NotSimple
    return start
