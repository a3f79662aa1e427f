"""A clip: some frames in a row of an mp4 file, with all that they are decoded from, as an mp4 file of its own."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from penstock.formats.mp4.boxes import WIDE_BYTES, make_box, make_table
from penstock.formats.mp4.track import FrameIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.types import Int64Array

_HEAD = struct.Struct("<BqqIQI")
_SHIFT_AT, _NUM_PACKETS_AT, _SIZES_AT = 9, 17, 21
_VERSION = 1
_MOST_PACKETS = 1 << 26
_PLAYS_AS_STORED = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
_SAME_TABLES = 64  # the clips of a dataset have few different tables
_BOXES_BYTES = 2048  # of a clip, besides its tables and packets


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip:
    """What an index says of a clip: its tables, but for the sizes of packets, which are read where they lie."""

    begin: int  # the tick of the file at which its first frame is shown
    shift: int  # what to add to a tick of the clip to get that of the file
    num_packets: int
    sizes_at: int  # where in the file the sizes of its packets begin
    durations: Int64Array  # how many packets, and for how many ticks each: runs in the order of decoding
    shifts: Int64Array  # how many ticks later than it is decoded each packet is shown; empty: none is
    keys: Int64Array  # packets that are decoded without others; the first is one

    @property
    def sizes_end(self) -> int:
        """Where the sizes of its packets end."""
        return self.sizes_at + 4 * self.num_packets

    def index(self, timescale: int) -> FrameIndex:
        """Return its frames in the order in which they are shown, at the ticks of the file."""
        each = np.repeat(self.durations[:, 1], self.durations[:, 0])
        shown = np.cumsum(each) - each + self.shift
        if not len(self.shifts):
            return FrameIndex(shown, 1 / timescale, self.keys)
        shown = shown + self.shifts
        is_key = np.zeros(len(shown), np.bool_)
        is_key[self.keys] = True
        return FrameIndex.of(shown, is_key, 1 / timescale)

    def dump(self) -> bytes:
        """Return the clip as it stands in an index."""
        num_bytes, tables = _pack_tables(self.durations.tobytes(), self.shifts.tobytes(), self.keys.tobytes())
        return _HEAD.pack(_VERSION, self.begin, self.shift, self.num_packets, self.sizes_at, num_bytes) + tables

    @classmethod
    def load(cls, data: bytes) -> Clip:
        """Read one, checking all that later code relies on; a `ValueError` says that it is none."""
        try:
            version, begin, shift, num_packets, sizes_at, num_bytes = _HEAD.unpack_from(data)
            unpacking = zlib.decompressobj()
            values = np.frombuffer(unpacking.decompress(data[_HEAD.size :], num_bytes), "<i4").astype(np.int64)
        except (struct.error, zlib.error) as error:
            raise ValueError(f"a clip is not readable: {error}") from error
        if version != _VERSION or num_packets > _MOST_PACKETS or len(values) < 3 or (values[:3] < 0).any():
            raise ValueError("a clip is of an unknown kind")
        ends = 3 + np.cumsum(values[:3])
        runs, shifts, steps = values[3 : ends[0]], values[ends[0] : ends[1]], values[ends[1] : ends[2]]
        keys = np.concatenate([[0], np.cumsum(steps)])
        if len(values) != ends[2] or len(runs) % 2 or (runs < 0).any() or (steps <= 0).any():
            raise ValueError("the tables of a clip do not fit")
        durations = runs.reshape(-1, 2)
        if durations[:, 0].sum() != num_packets or len(shifts) not in (0, num_packets) or keys[-1] >= num_packets:
            raise ValueError("the tables of a clip do not fit")
        return cls(
            begin=begin,
            shift=shift,
            num_packets=num_packets,
            sizes_at=sizes_at,
            durations=durations,
            shifts=shifts,
            keys=keys,
        )

    @staticmethod
    def same_tables(data: bytes) -> tuple[bytes, bytes]:
        """Return what clips share in an index that differ only in their place in a file."""
        return data[:1] + data[_NUM_PACKETS_AT:_SIZES_AT], data[_SIZES_AT + 8 :]

    @staticmethod
    def shift_of(data: bytes) -> int:
        """Read the shift of a clip that stands in an index, and no more of it."""
        return int.from_bytes(data[_SHIFT_AT:_NUM_PACKETS_AT], "little", signed=True)

    @property
    def overhead_bytes(self) -> int:
        """About how much longer its file is than its packets."""
        return _BOXES_BYTES + 4 * (self.num_packets + 2 * len(self.shifts) + len(self.keys) + self.durations.size)


@lru_cache(maxsize=_SAME_TABLES)
def _pack_tables(durations: bytes, shifts: bytes, keys: bytes) -> tuple[int, bytes]:
    """Return tables of 64-bit numbers as they stand in an index, and how long they are when unpacked."""
    runs, later, packets = (np.frombuffer(each, np.int64) for each in (durations, shifts, keys))
    counts = np.array([len(runs), len(later), len(packets) - 1])
    values = np.concatenate([counts, runs, later, np.diff(packets)]).astype("<i4").tobytes()
    return len(values), zlib.compress(values)


def write_clip(
    out: BinaryIO,
    clip: Clip,
    sizes: Int64Array,
    packets: Sequence[memoryview],
    timescale: int,
    tkhd: bytes,
    stsd: bytes,
) -> None:
    """Write a clip as a file; `tkhd` and `stsd` say how pictures are shown and decoded, as in the whole file."""
    tables = [make_box(b"stsd", stsd), make_table(b"stts", clip.durations), make_table(b"stss", clip.keys[:, None] + 1)]
    if len(clip.shifts):
        ones = np.ones_like(clip.shifts)
        box = make_table(b"ctts", np.stack([ones, clip.shifts], axis=1))
        tables.append(box[:8] + b"\1" + box[9:])  # the version whose shifts have a sign
    tables.append(make_box(b"stsz", struct.pack(">III", 0, 0, len(sizes)), sizes.astype(">u4").tobytes()))
    tables.append(make_table(b"stsc", np.array([[1, len(sizes), 1]])))
    ftyp = make_box(b"ftyp", b"isom", struct.pack(">I", 512), b"isomiso2mp41")
    num_bytes = int(sizes.sum())

    def moov(data_at: int) -> bytes:
        where = make_box(b"co64", struct.pack(">IIQ", 0, 1, data_at))
        return _moov([*tables, where], timescale, tkhd)

    out.write(ftyp)
    out.write(moov(len(ftyp) + len(moov(0)) + WIDE_BYTES))
    out.write(struct.pack(">I4sQ", 1, b"mdat", WIDE_BYTES + num_bytes))
    for piece in packets:
        out.write(piece)


def _moov(tables: Sequence[bytes], timescale: int, tkhd: bytes) -> bytes:
    mvhd = struct.pack(">IIIIIIH10x", 0, 0, 0, timescale, 0, 1 << 16, 256) + _PLAYS_AS_STORED + bytes(24) + b"\0\0\0\2"
    mdhd = struct.pack(">IIIIIHH", 0, 0, 0, timescale, 0, 0x55C4, 0)
    hdlr = struct.pack(">II4s12x", 0, 0, b"vide") + b"\0"
    here = make_box(b"url ", struct.pack(">I", 1))
    dref = make_box(b"dref", struct.pack(">II", 0, 1), here)
    minf = make_box(
        b"minf",
        make_box(b"vmhd", struct.pack(">I8x", 1)),
        make_box(b"dinf", dref),
        make_box(b"stbl", *tables),
    )
    mdia = make_box(b"mdia", make_box(b"mdhd", mdhd), make_box(b"hdlr", hdlr), minf)
    return make_box(b"moov", make_box(b"mvhd", mvhd), make_box(b"trak", make_box(b"tkhd", tkhd), mdia))


def plain_tkhd(tkhd: bytes) -> bytes:
    """Return how pictures are shown without what differs from file to file: dates and durations."""
    wide = tkhd[0] == 1
    dates, duration, size = (16, 8, 96) if wide else (8, 4, 84)
    if len(tkhd) < size:
        raise ValueError("the head of the track is cut off")
    duration_at = 4 + dates + 8
    return (
        tkhd[:4] + bytes(dates) + tkhd[4 + dates : duration_at] + bytes(duration) + tkhd[duration_at + duration : size]
    )
