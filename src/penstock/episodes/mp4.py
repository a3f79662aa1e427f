"""When each frame of an mp4 file is shown, and which ones can be decoded by themselves: from its `moov` box alone.

All that is read is tables of numbers: no packet is touched. What these tables cannot tell in a simple way (fragmented
files, several edits) is left to whoever reads the packets.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from penstock.errors import CorruptShardError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from penstock.types import Int64Array

_HEAD_BYTES = 8
_WIDE_BYTES = 16
_MAX_MOOV_BYTES = 1 << 28
_VIDEO = b"vide"


@dataclass(frozen=True, slots=True, eq=False)
class FrameIndex:
    """The frames of a video in the order in which they are shown, counted from 0."""

    ticks: Int64Array  # when each is shown; ascending
    tick_s: float  # how long a tick is, in seconds
    keyframes: Int64Array  # the frames that can be decoded without others; ascending

    @classmethod
    def of(cls, ticks: Int64Array, is_key: npt.NDArray[np.bool_], tick_s: float) -> FrameIndex:
        """Sort the frames of a file, which are stored in the order in which they are decoded."""
        order = np.argsort(ticks, kind="stable")
        return cls(ticks[order], tick_s, np.flatnonzero(is_key[order]))

    def __len__(self) -> int:
        return len(self.ticks)

    def nearest(self, seconds: npt.NDArray[np.float64]) -> tuple[Int64Array, npt.NDArray[np.float64]]:
        """Give for each time the frame shown nearest to it, and how far off that is in seconds."""
        times = self.ticks * self.tick_s
        after = np.clip(np.searchsorted(times, seconds), 1, max(1, len(times) - 1))
        after = np.minimum(after, len(times) - 1)
        before = np.maximum(after - 1, 0)
        frames = np.where(np.abs(times[before] - seconds) <= np.abs(times[after] - seconds), before, after)
        return frames.astype(np.int64), np.abs(times[frames] - seconds)

    def keyframe_of(self, frames: Int64Array) -> Int64Array:
        """Give the place in `keyframes` of the one that each frame is decoded from."""
        return np.maximum(np.searchsorted(self.keyframes, frames, side="right") - 1, 0)


def read_frame_index(path: str) -> FrameIndex | None:
    """Read when the frames of the first video of an mp4 file are shown; None if its tables do not tell that simply."""
    with Path(path).open("rb") as file:
        moov = _read_moov(file)
    if moov is None:
        return None
    try:
        for _, trak in _boxes(moov, only=b"trak"):
            mdia = _child(trak, b"mdia")
            if _child(mdia, b"hdlr")[8:12] == _VIDEO:
                return _index_track(trak, mdia)
    except _NotSimple:
        return None
    except (IndexError, ValueError) as error:
        raise CorruptShardError(f"{path} has a damaged moov box: {error}", file=path) from error
    return None


class _NotSimple(Exception):  # noqa: N818  not an error: others know how to read it
    """The tables of this file do not tell all that is needed."""


def _read_moov(file: BinaryIO) -> bytes | None:
    """Find the box that describes the file, whether it comes before the data or after them."""
    end, offset = os.fstat(file.fileno()).st_size, 0
    while offset + _HEAD_BYTES <= end:
        file.seek(offset)
        head = file.read(_WIDE_BYTES)
        size, kind, begin = int.from_bytes(head[:4], "big"), head[4:8], _HEAD_BYTES
        if size == 1:
            size, begin = int.from_bytes(head[8:16], "big"), _WIDE_BYTES
        elif size == 0:
            size = end - offset
        if size < begin or offset + size > end or kind == b"moof":
            return None
        if kind == b"moov":
            if size > _MAX_MOOV_BYTES:
                return None
            file.seek(offset + begin)
            return file.read(size - begin)
        offset += size
    return None


def _boxes(data: bytes, only: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Cut the content of a box into the boxes in it: their kind and their content."""
    offset = 0
    while offset + _HEAD_BYTES <= len(data):
        size, kind, begin = int.from_bytes(data[offset : offset + 4], "big"), data[offset + 4 : offset + 8], _HEAD_BYTES
        if size == 1:
            size, begin = int.from_bytes(data[offset + 8 : offset + 16], "big"), _WIDE_BYTES
        if size < begin or offset + size > len(data):
            raise ValueError(f"the box {kind!r} has a size of {size}")
        if only in (None, kind):
            yield kind, data[offset + begin : offset + size]
        offset += size


def _child(data: bytes, kind: bytes) -> bytes:
    found = _find(data, kind)
    if found is None:
        raise ValueError(f"there is no box {kind!r}")
    return found


def _find(data: bytes, kind: bytes) -> bytes | None:
    return next((content for _, content in _boxes(data, only=kind)), None)


def _index_track(trak: bytes, mdia: bytes) -> FrameIndex:
    stbl = _child(_child(mdia, b"minf"), b"stbl")
    durations = _table(_child(stbl, b"stts"), 2)
    num_frames = int(durations[:, 0].sum())
    if num_frames != _count_samples(_child(stbl, b"stsz")):
        raise _NotSimple
    decoded = np.repeat(durations[:, 1], durations[:, 0])
    ticks = np.cumsum(decoded) - decoded
    shifts = _find(stbl, b"ctts")
    if shifts is not None:
        runs = _table(shifts, 2)
        # Offsets may be negative, whatever the version of the box says.
        offsets = np.repeat(runs[:, 1].astype(np.uint32).view(np.int32).astype(np.int64), _runs(runs[:, 0], num_frames))
        ticks = ticks + offsets
    timescale = _timescale(_child(mdia, b"mdhd"))
    is_key = np.zeros(num_frames, np.bool_)
    keys = _find(stbl, b"stss")
    if keys is None:
        is_key[:] = True
    else:
        is_key[_table(keys, 1)[:, 0] - 1] = True
    if not is_key.any():  # nor if there are no frames
        raise _NotSimple
    return FrameIndex.of(ticks - _edited_start(trak, ticks), is_key, 1 / timescale)


def _count_samples(stsz: bytes) -> int:
    """Count the stored frames; a table that is not there, or frames of one size, are left to others."""
    if int.from_bytes(stsz[4:8], "big"):
        raise _NotSimple
    count = int.from_bytes(stsz[8:12], "big")
    if len(stsz) < 12 + 4 * count:
        raise ValueError("the table of frame sizes is cut off")
    return count


def _table(box: bytes, num_columns: int) -> Int64Array:
    """Give a table of 32-bit numbers, without their sign; its size comes before it."""
    count = int.from_bytes(box[4:8], "big")
    values = np.frombuffer(box, ">u4", offset=8)
    if len(box) % 4 or len(values) < count * num_columns:
        raise ValueError("a table is cut off")
    return values[: count * num_columns].reshape(count, num_columns).astype(np.int64)


def _runs(counts: Int64Array, total: int) -> Int64Array:
    if int(counts.sum()) != total:
        raise ValueError("two tables speak of different numbers of frames")
    return counts


def _timescale(mdhd: bytes) -> int:
    """Give the ticks of a second."""
    begin = 20 if mdhd[0] == 1 else 12
    ticks = int.from_bytes(mdhd[begin : begin + 4], "big")
    if not ticks:
        raise ValueError("a second has no ticks")
    return ticks


def _edited_start(trak: bytes, ticks: Int64Array) -> int:
    """Give the tick at which the video begins to be shown; only one edit, of all frames, is simple."""
    edts = _find(trak, b"edts")
    elst = None if edts is None else _find(edts, b"elst")
    if elst is None:
        return 0
    is_wide = elst[0] == 1
    if int.from_bytes(elst[4:8], "big") != 1:
        raise _NotSimple
    begin = 16 if is_wide else 12
    start = int.from_bytes(elst[begin : begin + (8 if is_wide else 4)], "big", signed=True)
    if start < 0 or start > int(ticks.min()):
        raise _NotSimple
    return start
