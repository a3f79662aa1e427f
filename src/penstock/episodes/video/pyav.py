"""Videos decoded by PyAV, which brings FFmpeg along. Frames are kept as they come from the decoder, and not as RGB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.video.backend import PURPOSE
from penstock.episodes.video.packed import FramePacker
from penstock.episodes.video.rgb import RgbConverter
from penstock.errors import CorruptShardError, ObjectNotFoundError
from penstock.extras import require
from penstock.formats.mp4.track import FrameIndex, read_frame_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt


class PyavBackend:
    """Decodes with PyAV."""

    pixel_bytes = 1.5  # of three colors, two have a quarter of the size

    def open(self, path: str, name: str) -> PyavFile:
        """Open a file."""
        return PyavFile(path, name)

    def make_packer(self, limit_bytes: int) -> FramePacker:
        """Return what turns frames into those that are kept."""
        return FramePacker(limit_bytes)

    def make_converter(self) -> Callable[[Any], npt.NDArray[np.uint8]]:
        """Return a function that turns frames into RGB."""
        return RgbConverter().convert


class PyavFile:
    """An open video file. For one thread at a time."""

    def __init__(self, path: str, name: str = "") -> None:
        self._name = name or path
        self._av = av = require("av", extra="video", purpose=PURPOSE)
        try:
            self._container = av.open(path)
            self._stream = self._container.streams.video[0]
            # More threads make random access cost more: each begins a group of pictures with waiting for the others.
            self._stream.codec_context.thread_count = 1
            # What it finds damaged is an error; by itself it would make something up, and give that as a picture.
            self._stream.codec_context.options = {"err_detect": "crccheck+explode"}
            self.index = read_frame_index(path) or _index_packets(self._container, self._name)
        except FileNotFoundError as error:
            raise ObjectNotFoundError(f"the video {self._name} is missing", file=self._name) from error
        except (av.FFmpegError, IndexError) as error:
            raise CorruptShardError(f"{self._name} cannot be opened as a video: {error}", file=self._name) from error
        self._decoded: Iterator[Any] | None = None
        self._next = 0  # the frame that decoding on would give

    @property
    def next_frame(self) -> int | None:
        """The frame that comes next without a seek, if that is known."""
        return None if self._decoded is None or self._next == _UNKNOWN else self._next

    def decode(
        self, first: int, last: int, is_wanted: Callable[[int], bool] = lambda _: True
    ) -> Iterator[tuple[int, Any]]:
        """Decode from one frame to another, and give with them all others on the way to the first."""
        try:
            for number, frame in self._decode(first, last):
                yield number, frame if is_wanted(number) else None
        except self._av.FFmpegError as error:
            self._decoded = None
            at, to = (float(self.index.ticks[max(0, each)] * self.index.tick_s) for each in (self._next, last))
            raise CorruptShardError(
                f"{self._name} cannot be decoded from {at:.6f} s to {to:.6f} s: {error}", file=self._name, seconds=at
            ) from error

    def _decode(self, first: int, last: int) -> Iterator[tuple[int, Any]]:
        keyframe = int(self.index.keyframe_of(np.array([first]))[0])
        if self._decoded is None or not int(self.index.keyframes[keyframe]) <= self._next <= first:
            self._seek(keyframe)
        ticks, may_begin_earlier = self.index.ticks, True
        while self._decoded is not None:
            try:
                frame = next(self._decoded, None)
            except self._av.FFmpegError:
                # Pictures may refer to some before their keyframe: begin further ahead. What is damaged fails again.
                if keyframe == 0 or not may_begin_earlier:
                    raise
                keyframe, may_begin_earlier = keyframe - 1, False
                self._seek(keyframe)
                continue
            if frame is None:
                break
            number = int(np.searchsorted(ticks, frame.pts))
            if self._next == _UNKNOWN and number > first and keyframe > 0:
                # The seek went too far, as it may where pictures refer to later ones: begin further ahead.
                keyframe -= 1
                self._seek(keyframe)
                continue
            self._next = number + 1
            if number < len(ticks) and ticks[number] == frame.pts:
                yield number, frame
            if number >= last:
                return
        self._decoded = None

    def _seek(self, keyframe: int) -> None:
        ticks = int(self.index.ticks[self.index.keyframes[keyframe]])
        self._container.seek(ticks, stream=self._stream, backward=True)
        self._decoded = self._frames_from(ticks)
        self._next = _UNKNOWN

    def _frames_from(self, begin: int) -> Iterator[Any]:
        """Decode from a keyframe on, without pictures shown before it: they may refer to some that were not decoded."""
        for packet in self._container.demux(self._stream):
            try:
                frames = packet.decode()
            except self._av.FFmpegError:
                if packet.pts is None or packet.pts >= begin:
                    raise
                continue
            for frame in frames:
                if frame.pts is None or frame.pts < begin:
                    continue
                if frame.is_corrupt:
                    raise self._av.error.InvalidDataError(_INVALID_DATA, "a frame is marked as damaged")
                yield frame

    def close(self) -> None:
        """Close the file."""
        self._decoded = None
        self._container.close()


_INVALID_DATA = 0x41444E49  # FFmpeg's number of this error, without its sign
_UNKNOWN = -1  # after a seek: whatever comes, comes


def read_packets(path: str, name: str) -> FrameIndex:
    """Learn when frames are shown from all packets of a file whose tables do not tell."""
    av = require("av", extra="video", purpose=PURPOSE)
    try:
        with av.open(path) as container:
            return _index_packets(container, name)
    except FileNotFoundError:
        raise
    except av.FFmpegError as error:
        raise CorruptShardError(f"{name} cannot be opened as a video: {error}", file=name) from error


def _index_packets(container: Any, name: str) -> FrameIndex:
    stream = container.streams.video[0]
    packets = [
        (packet.pts, packet.is_keyframe, packet.size)
        for packet in container.demux(stream)
        if packet.pts is not None and not packet.is_discard
    ]
    if not packets:
        raise CorruptShardError(f"{name} has no frames", file=name)
    ticks, is_key, sizes = (np.array(each) for each in zip(*packets, strict=True))
    return FrameIndex.of(ticks.astype(np.int64), is_key.astype(np.bool_), float(stream.time_base), sizes)
