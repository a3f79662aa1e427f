"""Videos of episodes: each episode encoded by itself as its frames come, several of them in one file."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.episodes.writing.rows import FileNumbers
from penstock.errors import ConfigError, StoreError
from penstock.extras import require

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from penstock.episodes.info import Feature

_PURPOSE = "writing video"
_TICKS = 1024  # of a frame: the grid on which a file notes when frames are shown
_ENCODERS = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1"}
# Pictures that refer to later ones would make the beginning of an episode depend on what comes before it in the file.
_OPTIONS = {
    "h264": {"preset": "medium", "bf": "0"},
    "hevc": {"preset": "medium", "x265-params": "bframes=0:log-level=none"},
    "av1": {"preset": "10", "svtav1-params": "pred-struct=1"},
}
_QUALITY = {"h264": 23, "hevc": 28, "av1": 30}


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


class VideoFiles:
    """The files of one camera: episodes one after the other, a new file whenever one would get too large."""

    def __init__(
        self, root: Path, template: str, feature: Feature, coding: VideoCoding, *, limit_bytes: float, chunks_size: int
    ) -> None:
        self._root, self._template, self._limit = root, template, limit_bytes
        self._feature, self._coding = feature, coding
        self.numbers = FileNumbers(chunks_size)
        self._container: Any = None
        self._stream: Any = None
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
        self.numbers.next()
        av = require("av", extra="video", purpose=_PURPOSE)
        path = self._root / self._template.format(
            video_key=self._feature.key, chunk_index=self.numbers.chunk, file_index=self.numbers.file
        )
        path.parent.mkdir(parents=True, exist_ok=True)
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
