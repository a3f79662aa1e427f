"""The files of a dataset: rows as Parquet and cameras as video, with several episodes in each."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.errors import ConfigError, StoreError
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from penstock.episodes.info import Feature

_PURPOSE = "writing robot episodes"
_TICKS = 1024  # of a frame: the grid on which a file notes when frames are shown
_ENCODERS = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1"}
# Pictures that refer to later ones would make the beginning of an episode depend on what comes before it in the file.
_OPTIONS = {
    "h264": {"preset": "medium", "bf": "0"},
    "hevc": {"preset": "medium", "x265-params": "bframes=0:log-level=none"},
    "av1": {"preset": "10", "svtav1-params": "pred-struct=1"},
}
_QUALITY = {"h264": 23, "hevc": 28, "av1": 30}


class EpisodeFiles:
    """Files of one kind, one after the other: so many in a chunk, then the next chunk."""

    def __init__(self, root: Path, template: str, limit_mb: float, chunks_size: int) -> None:
        self._root, self._template, self._chunks_size = root, template, chunks_size
        self._limit = limit_mb * (1 << 20)
        self.chunk, self.file = 0, -1

    def _next_path(self, **names: str) -> Path:
        """Go on to the next file, whose folder is made."""
        full = self.file + 1 == self._chunks_size
        self.chunk, self.file = (self.chunk + 1, 0) if full else (self.chunk, self.file + 1)
        path = self._root / self._template.format(chunk_index=self.chunk, file_index=self.file, **names)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


# --- Rows -----------------------------------------------------------------------------------------------------


def table_of(columns: Mapping[str, Sequence[Any]], features: Mapping[str, Feature]) -> Any:
    """Make the rows of an episode, by column, with the description that the Hub's readers look for."""
    arrow = require("pyarrow", extra="video", purpose=_PURPOSE)
    arrays = [_column(arrow, columns[key], feature) for key, feature in features.items()]
    described = {"info": {"features": {key: _hub_feature(feature) for key, feature in features.items()}}}
    return arrow.table(arrays, names=list(features)).replace_schema_metadata({"huggingface": json.dumps(described)})


def _column(arrow: Any, values: Sequence[Any], feature: Feature) -> Any:
    if feature.is_image:
        kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
        names = [f"frame-{number:06d}.png" for number in range(len(values))]
        return arrow.array([{"bytes": value, "path": name} for value, name in zip(values, names, strict=True)], kind)
    if feature.dtype == "string":
        kind = arrow.string()
        return arrow.array(values, kind if feature.shape == (1,) else arrow.list_(kind, feature.shape[0]))
    numbers = np.stack(values)
    column = arrow.array(np.ascontiguousarray(numbers).ravel())
    if feature.shape == (1,):
        return column
    if len(feature.shape) == 1:
        return arrow.FixedSizeListArray.from_arrays(column, feature.shape[0])
    for length in reversed(feature.shape):
        offsets = np.arange(0, len(column) + 1, length, dtype=np.int32)
        column = arrow.ListArray.from_arrays(arrow.array(offsets), column)
    return column


def _hub_feature(feature: Feature) -> dict[str, Any]:
    if feature.is_image:
        return {"_type": "Image"}
    value = {"dtype": feature.dtype, "_type": "Value"}
    if feature.shape == (1,):
        return value
    if len(feature.shape) == 1:
        return {"feature": value, "length": feature.shape[0], "_type": "List"}
    return {"shape": list(feature.shape), "dtype": feature.dtype, "_type": f"Array{len(feature.shape)}D"}


class ParquetFiles(EpisodeFiles):
    """Writes tables one after the other, each a row group, to a new file whenever one would get too large."""

    _path: Path
    _file: Any = None
    _writer: Any = None
    _schema: Any = None

    def make_room(self, num_bytes: int) -> None:
        """Begin a new file if this one has no room for so many bytes more."""
        if self._writer is None or self._file.tell() + num_bytes > self._limit:
            self.close()
            self._path = self._next_path()

    def add(self, table: Any) -> None:
        """Write a table to the file of now; all have the columns of the first one."""
        if self._writer is None:
            parquet = require("pyarrow.parquet", extra="video", purpose=_PURPOSE)
            self._schema = self._schema or table.schema
            self._file = self._path.open("xb")
            self._writer = parquet.ParquetWriter(self._file, self._schema, compression="snappy")
        self._writer.write_table(table.cast(self._schema), row_group_size=max(1, len(table)))

    def close(self) -> None:
        """Finish the file of now."""
        if self._writer is not None:
            self._writer.close()
            self._file.close()
            self._writer = self._file = None


# --- Videos ---------------------------------------------------------------------------------------------------


class VideoCoding(NamedTuple):
    """How frames are encoded."""

    codec: str
    gop: int
    crf: int
    rate: Fraction

    @classmethod
    def of(cls, codec: str, gop: int, crf: int | None, fps: float) -> VideoCoding:
        """Check what a user says."""
        if codec not in _ENCODERS:
            raise ConfigError(f"unknown video_codec {codec!r}: use one of {', '.join(_ENCODERS)}")
        return cls(codec, gop, _QUALITY[codec] if crf is None else crf, Fraction(fps).limit_denominator(1001))

    def apply(self, context: Any, feature: Feature) -> None:
        """Set up an encoder."""
        context.height, context.width = feature.shape[:2]
        context.pix_fmt = "yuv420p"
        context.time_base, context.framerate = 1 / self.rate, self.rate
        context.options = {**_OPTIONS[self.codec], "g": str(self.gop), "crf": str(self.crf)}

    @property
    def encoder(self) -> str:
        """The name of the encoder."""
        return _ENCODERS[self.codec]

    def describe(self, feature: Feature) -> dict[str, Any]:
        """Return what `info.json` says of a video."""
        height, width, channels = feature.shape
        return {
            "video.height": height,
            "video.width": width,
            "video.codec": self.codec,
            "video.pix_fmt": "yuv420p",
            "video.is_depth_map": False,
            "video.fps": float(self.rate) if self.rate.denominator > 1 else int(self.rate),
            "video.channels": channels,
            "video.g": self.gop,
            "video.crf": self.crf,
            "has_audio": False,
        }


class EpisodeEncoder:
    """Encodes the frames of one episode and one camera; only what is encoded is kept."""

    def __init__(self, coding: VideoCoding, feature: Feature) -> None:
        if coding.codec == "av1":
            os.environ.setdefault("SVT_LOG", "1")  # errors only: it would describe itself for each episode
        self._av = av = require("av", extra="video", purpose=_PURPOSE)
        self._context = av.CodecContext.create(coding.encoder, "w")
        coding.apply(self._context, feature)
        self._context.flags |= av.codec.context.Flags.global_header
        self._key = feature.key
        self._packets: list[Any] = []
        self.num_frames = 0

    def add(self, pixels: npt.NDArray[np.uint8]) -> None:
        """Encode the next frame."""
        frame = self._av.VideoFrame.from_ndarray(pixels, format="rgb24")
        frame.pts, frame.time_base = self.num_frames, self._context.time_base
        self._encode(frame)
        self.num_frames += 1

    def finish(self) -> list[Any]:
        """Return all that was encoded, as packets."""
        self._encode(None)
        return self._packets

    def _encode(self, frame: Any) -> None:
        try:
            self._packets += self._context.encode(frame)
        except self._av.FFmpegError as error:
            raise StoreError(f"the video {self._key!r} cannot be encoded: {error}", key=self._key) from error


class VideoFiles(EpisodeFiles):
    """The files of one camera: episodes one after the other, a new file whenever one would get too large."""

    _container: Any = None
    _stream: Any = None

    def __init__(self, feature: Feature, coding: VideoCoding, *where: Any) -> None:
        super().__init__(*where)
        self._feature, self._coding = feature, coding
        self._num_bytes = self._num_frames = 0

    def add(self, packets: list[Any], num_frames: int) -> tuple[float, float]:
        """Write an episode, and say at which second of its file it begins and ends."""
        num_bytes = sum(packet.size for packet in packets)
        if self._container is None or self._num_bytes + num_bytes > self._limit:
            self._begin()
        before = self._num_frames
        for packet in packets:
            packet.stream, packet.time_base = self._stream, 1 / self._coding.rate
            packet.pts += before
            packet.dts += before
            self._container.mux(packet)
        self._num_bytes += num_bytes
        self._num_frames += num_frames
        return float(before / self._coding.rate), float(self._num_frames / self._coding.rate)

    def _begin(self) -> None:
        self.close()
        av = require("av", extra="video", purpose=_PURPOSE)
        path = self._next_path(video_key=self._feature.key)
        ticks = str(self._coding.rate.numerator * _TICKS)
        options = {"movflags": "faststart", "video_track_timescale": ticks}
        self._container = av.open(str(path), "w", options=options)
        self._stream = self._container.add_stream(self._coding.encoder, rate=self._coding.rate)
        self._coding.apply(self._stream.codec_context, self._feature)
        self._num_bytes = self._num_frames = 0

    def close(self) -> None:
        """Finish the file of now."""
        if self._container is not None:
            self._container.close()
            self._container = self._stream = None
