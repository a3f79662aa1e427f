"""mp4 files as shards: one clip for each stretch of time that is asked for, fetched by the bytes of its packets."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError, CorruptShardError
from penstock.formats.files import FileFormat, ScannedFile, ScannedShard
from penstock.formats.mp4.boxes import find_moov
from penstock.formats.mp4.clip import Clip, plain_tkhd, write_clip
from penstock.formats.mp4.track import FrameIndex, VideoTrack, parse_track
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from penstock.formats.base import ReadOptions, ShardReader
    from penstock.formats.files import FileBytes, SpanBytes, StoredObject
    from penstock.index.model import ShardInfo, ShardLayout
    from penstock.types import Int64Array

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

    def spans(self, info: ShardInfo, columns: tuple[str, ...] | None) -> tuple[Span, ...]:
        """Fetch the packets of a clip, and the sizes of these; of a file that cannot be cut, all."""
        if not info.details:
            return super().spans(info, columns)
        clip = clip_of(info)
        packets = super().spans(info, columns)[0]
        return tuple(sorted([Span(clip.sizes_at, clip.sizes_end), packets], key=lambda span: span.begin))

    def unpack(self, info: ShardInfo, columns: tuple[str, ...] | None, stored: SpanBytes, out: BinaryIO) -> None:
        """Write a clip as a file of its own."""
        packets = FileFormat.spans(self, info, columns)[0]
        pieces = [
            stored.read(begin, min(begin + _COPIED_AT_ONCE, packets.end))
            for begin in range(packets.begin, packets.end, _COPIED_AT_ONCE)
        ]
        if not info.details:
            out.writelines(pieces)
            return
        clip, look = clip_of(info), Look.of(info.layout, info.name)
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

    def open(self, parts: Sequence[FileBytes], info: ShardInfo, options: ReadOptions) -> ShardReader:  # noqa: ARG002
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


def clip_of(info: ShardInfo) -> Clip:
    """Read what an index says of a clip."""
    return load_clip(info.details, info.name)


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
    durations = _durations(track)
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
        yield Clip(
            begin=tick,
            shift=shift,
            num_packets=stop - begin,
            sizes_at=track.sizes_at + 4 * begin,
            durations=_runs(durations, [begin, *changes[first_change:stop_change].tolist(), stop]),
            shifts=own_shifts if len(own_shifts) and own_shifts.any() else shifts[:0],
            keys=keys[first_key:stop_key] - begin,
        )


def _durations(track: VideoTrack) -> Int64Array:
    """Return the ticks from each packet to the next; of the last, those before it."""
    steps = np.diff(track.decoded)
    return np.append(steps, steps[-1:] if len(steps) else 1)


def _runs(values: Int64Array, bounds: Sequence[int]) -> Int64Array:
    """Join equal numbers in a row, which begin and end at some places: how many, and which."""
    return np.array([(end - begin, values[begin]) for begin, end in pairwise(bounds)], np.int64)
