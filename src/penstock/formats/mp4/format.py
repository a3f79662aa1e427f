"""mp4 files as shards: one clip for each stretch of time that is asked for, fetched by the bytes of its packets."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from penstock.errors import ConfigError, CorruptShardError
from penstock.formats.files import FileFormat, ScannedFile, ScannedShard
from penstock.formats.mp4.track import WIDE_BYTES, FrameIndex, VideoTrack, find_moov, make_box, make_table, parse_track
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from penstock.formats.base import ReadOptions, ShardReader
    from penstock.formats.files import FileBytes, SpanBytes, StoredObject
    from penstock.index.model import IndexedShard, ShardLayout
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


_FIRST_BYTES = 4 << 10
_COPIED_AT_ONCE = 8 << 20
CUTS = "cuts"


class Mp4Format(FileFormat):
    """Scans mp4 files, and unpacks clips of them. A file that cannot be cut is one shard, and stays as it is.

    The setting `cuts` says for each file, by its name, at which millionths of a second its clips begin; a file that it
    does not name is one clip.
    """

    raw_version = "clip1"
    head_bytes = _FIRST_BYTES
    setting_names = (CUTS,)

    def scan(self, file: StoredObject, settings: Mapping[str, Any]) -> ScannedFile:
        """Read the tables of a file, and cut it."""
        head = file.read(0, min(_FIRST_BYTES, file.num_bytes))

        def read(begin: int, end: int) -> bytes:
            return head[begin:end] if end <= len(head) else file.read(begin, end)

        box = find_moov(read, file.num_bytes)
        track = None if box is None else parse_track(read(box.begin, box.end), box.begin, file.name)
        shards = None if track is None else _cut(track, settings.get(CUTS, {}).get(file.name, [0]), file)
        if track is None or shards is None:
            whole = ScannedShard(1, Span(0, file.num_bytes), file.num_bytes)
            return ScannedFile((), (whole,))
        about = {
            "timescale": track.timescale,
            "tkhd": base64.b64encode(plain_tkhd(track.content(b"tkhd"))).decode(),
            "stsd": base64.b64encode(track.content(b"mdia", b"minf", b"stbl", b"stsd")).decode(),
        }
        return ScannedFile((), tuple(shards), about)

    def spans(self, info: IndexedShard, columns: tuple[str, ...] | None) -> tuple[Span, ...]:
        """Fetch the packets of a clip, and the sizes of these; of a file that cannot be cut, all."""
        if not info.details:
            return super().spans(info, columns)
        clip = load_clip(info.details, info.name)
        packets = super().spans(info, columns)[0]
        return tuple(sorted([Span(clip.sizes_at, clip.sizes_end), packets], key=lambda span: span.begin))

    def unpack(self, info: IndexedShard, columns: tuple[str, ...] | None, stored: SpanBytes, out: BinaryIO) -> None:
        """Write a clip as a file of its own."""
        packets = FileFormat.spans(self, info, columns)[0]
        pieces = [
            stored.read(begin, min(begin + _COPIED_AT_ONCE, packets.end))
            for begin in range(packets.begin, packets.end, _COPIED_AT_ONCE)
        ]
        if not info.details:
            out.writelines(pieces)
            return
        clip, look = load_clip(info.details, info.name), Look.of(info.layout, info.name)
        sizes = np.frombuffer(stored.read(clip.sizes_at, clip.sizes_end), ">u4").astype(np.int64)
        if int(sizes.sum()) != len(packets):
            raise CorruptShardError(
                f"{info.name} has packets of {int(sizes.sum())} bytes, not {len(packets)} as its index says: index it"
                " again",
                shard=info.name,
            )
        write_clip(out, clip, sizes, pieces, look.timescale, look.tkhd, look.stsd)

    def check(self, layout: ShardLayout, options: ReadOptions) -> None:  # noqa: ARG002
        """Refuse to give samples: frames belong to episodes, and these to a robot dataset."""
        raise ConfigError("videos are not samples by themselves: read the dataset with StreamingLeRobotDataset")

    def open(self, parts: Sequence[FileBytes], info: IndexedShard, options: ReadOptions) -> ShardReader:  # noqa: ARG002
        """Refuse to give samples."""
        self.check(info.layout, options)
        raise AssertionError


@dataclass(frozen=True, slots=True)
class Look:
    """What all clips of a file have in common."""

    timescale: int
    tkhd: bytes
    stsd: bytes

    @classmethod
    def of(cls, layout: ShardLayout, where: str) -> Look:
        """Read it from an index, which may come from others."""
        settings = layout.settings
        try:
            timescale = settings["timescale"]
            if type(timescale) is not int or not 0 < timescale < 1 << 32:
                raise ValueError(f"a second of {timescale!r} ticks")
            return cls(timescale, *(base64.b64decode(settings[name], validate=True) for name in ("tkhd", "stsd")))
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise CorruptShardError(f"{where} has an entry in the index that cannot be read: {error}") from error


def load_clip(details: bytes, name: str) -> Clip:
    """Read what an index says of a clip; `name` is that of the file."""
    try:
        return Clip.load(details)
    except ValueError as error:
        raise CorruptShardError(f"{name} has an entry in the index that cannot be read: {error}") from error


def _cut(track: VideoTrack, cuts: Any, file: StoredObject) -> list[ScannedShard] | None:
    """Cut a track at some times, in millionths of a second; None: clips of it could not be decoded by themselves."""
    try:
        places = track.places()
        micros = np.asarray(cuts, np.int64)
    except (ValueError, OverflowError) as error:
        raise CorruptShardError(f"{file.name} cannot be cut into episodes: {error}", file=file.name) from error
    if places is None:
        return None
    offsets, sizes = places
    if int(offsets.min()) < 0 or int((offsets + sizes).max()) > file.num_bytes:
        raise CorruptShardError(f"{file.name} has frames beyond its end: it was cut off", file=file.name)
    if (offsets[1:] != (offsets + sizes)[:-1]).any():
        return None
    shown = track.shown
    order = np.argsort(shown, kind="stable")
    keys = np.flatnonzero(track.is_key)
    firsts = np.unique(FrameIndex(shown[order], 1 / track.timescale, keys).nearest(micros / 1e6)[0])
    lowest, stops = np.minimum.reduceat(order, firsts), np.maximum.reduceat(order, firsts) + 1
    begins = np.minimum(keys[np.maximum(0, np.searchsorted(keys, lowest, side="right") - 1)], lowest)
    if not track.is_key[begins].all():
        return None
    columns = (offsets[begins], (offsets + sizes)[stops - 1], np.diff(np.append(firsts, len(order))))
    return [
        ScannedShard(count, Span(at, end), end - at + clip.overhead_bytes, is_exact=False, details=clip.dump())
        for clip, at, end, count in zip(
            _clips(track, keys, begins, stops, shown[order[firsts]]), *(each.tolist() for each in columns), strict=True
        )
    ]


def _clips(
    track: VideoTrack, keys: Int64Array, begins: Int64Array, stops: Int64Array, ticks: Int64Array
) -> Iterator[Clip]:
    """Cut the tables of a track; there may be hundreds of clips in a file, so each takes only a few steps."""
    steps = np.diff(track.decoded)  # the ticks from each packet to the next; of the last, those before it
    durations = np.append(steps, steps[-1:] if len(steps) else 1)
    changes = np.flatnonzero(durations[1:] != durations[:-1]) + 1
    shifts = track.shifts if track.shifts.any() else track.shifts[:0]
    columns = (
        begins,
        stops,
        ticks,
        track.decoded[begins] - track.start,
        np.searchsorted(keys, begins),
        np.searchsorted(keys, stops),
        np.searchsorted(changes, begins, side="right"),
        np.searchsorted(changes, stops),
    )
    for begin, stop, tick, shift, first_key, stop_key, first_change, stop_change in zip(
        *(each.tolist() for each in columns), strict=True
    ):
        own_shifts = shifts[begin:stop]
        bounds = [begin, *changes[first_change:stop_change].tolist(), stop]
        yield Clip(
            begin=tick,
            shift=shift,
            num_packets=stop - begin,
            sizes_at=track.sizes_at + 4 * begin,
            durations=np.array([(end - at, durations[at]) for at, end in pairwise(bounds)], np.int64),
            shifts=own_shifts if len(own_shifts) and own_shifts.any() else shifts[:0],
            keys=keys[first_key:stop_key] - begin,
        )
