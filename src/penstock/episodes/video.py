"""One open video file: frames by number, decoded from the keyframe before them, each stretch in one go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.mp4 import FrameIndex, read_frame_index
from penstock.errors import CorruptShardError, ObjectNotFoundError
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from penstock.types import Int64Array

_PURPOSE = "decoding video"


def group_by_keyframe(frames: Int64Array, index: FrameIndex) -> list[Int64Array]:
    """Cut ascending frame numbers into those that are decoded from the same keyframe, and so in one pass."""
    if not len(frames):
        return []
    cuts = np.flatnonzero(np.diff(index.keyframe_of(frames))) + 1
    return np.split(frames, cuts)


class VideoFile:
    """An open video file. For one thread at a time.

    It goes on where it stopped, without a seek, if what is wanted next comes later in the same group of pictures.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._av = av = require("av", extra="video", purpose=_PURPOSE)
        try:
            self._container = av.open(path)
            self._stream = self._container.streams.video[0]
            # More threads make random access cost more: each begins a group of pictures with waiting for the others.
            self._stream.codec_context.thread_count = 1
            self.index = read_frame_index(path) or self._index_packets()
        except FileNotFoundError as error:
            raise ObjectNotFoundError(f"the video {path} is missing", file=path) from error
        except (av.FFmpegError, IndexError) as error:
            raise CorruptShardError(f"{path} cannot be opened as a video: {error}", file=path) from error
        self._decoded: Iterator[Any] | None = None
        self._next = 0  # the frame that decoding on would give

    def _index_packets(self) -> FrameIndex:
        """Learn when frames are shown from all packets of a file whose tables do not tell."""
        packets = [
            (packet.pts, packet.is_keyframe)
            for packet in self._container.demux(self._stream)
            if packet.pts is not None and not packet.is_discard
        ]
        if not packets:
            raise CorruptShardError(f"{self._path} has no frames", file=self._path)
        ticks, is_key = zip(*packets, strict=True)
        return FrameIndex.of(np.array(ticks, np.int64), np.array(is_key, np.bool_), float(self._stream.time_base))

    def decode(self, frames: Int64Array) -> Iterator[tuple[int, Any]]:
        """Decode ascending frames of one group of pictures, and give with them all others on the way there."""
        first, last = int(frames[0]), int(frames[-1])
        try:
            yield from self._decode(first, last)
        except self._av.FFmpegError as error:
            self._decoded = None
            raise CorruptShardError(
                f"{self._path} cannot be decoded from frame {self._next} to frame {last}: {error}",
                file=self._path,
                frame=last,
            ) from error

    def _decode(self, first: int, last: int) -> Iterator[tuple[int, Any]]:
        keyframe = int(self.index.keyframe_of(np.array([first]))[0])
        if self._decoded is None or not int(self.index.keyframes[keyframe]) <= self._next <= first:
            self._seek(keyframe)
        ticks = self.index.ticks
        while self._decoded is not None:
            frame = next(self._decoded, None)
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
        self._decoded = iter(self._container.decode(self._stream))
        self._next = _UNKNOWN

    def close(self) -> None:
        """Close the file."""
        self._decoded = None
        self._container.close()


_UNKNOWN = -1  # after a seek: whatever comes, comes


def frame_bytes(frame: Any) -> int:
    """Say how much memory a decoded frame takes as it is, before it is turned into RGB."""
    return sum(plane.buffer_size for plane in frame.planes)


class RgbConverter:
    """Turns decoded frames into RGB, one thread at a time. Frames that did it themselves would start threads each."""

    def __init__(self) -> None:
        reformatter = require("av.video.reformatter", extra="video", purpose=_PURPOSE)
        self._reformatter = reformatter.VideoReformatter()

    def convert(self, frame: Any) -> npt.NDArray[np.uint8]:
        """Give a frame as height, width, 3."""
        pixels: npt.NDArray[np.uint8] = self._reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
        return pixels
