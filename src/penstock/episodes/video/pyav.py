"""Videos decoded by PyAV, which brings FFmpeg along. Frames are kept as they come from the decoder, and not as RGB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.video.backend import PURPOSE
from penstock.episodes.video.pages import PicturePages, bytes_in_pages
from penstock.errors import CorruptShardError, ObjectNotFoundError
from penstock.extras import require
from penstock.formats.mp4.track import FrameIndex, read_frame_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt


class PyavBackend:
    """Decodes with PyAV."""

    pixel_bytes = 1.5  # of three colors, two have a quarter of the size

    def open(self, path: str, name: str) -> PyavFile:
        """Open a file."""
        return PyavFile(path, name)

    def make_packer(self, limit_bytes: int) -> FramePacker:
        """Give what turns frames into those that are kept."""
        return FramePacker(limit_bytes)

    def make_converter(self) -> Callable[[Any], npt.NDArray[np.uint8]]:
        """Give a function that turns frames into RGB."""
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


_PACKED: dict[str, Callable[[int, int], tuple[int, ...]]] = {  # what frames can be made of again, in arrays of a shape
    **dict.fromkeys(["yuv420p", "yuvj420p"], lambda height, width: (height * 3 // 2, width)),
    **dict.fromkeys(["yuv444p", "yuvj444p"], lambda height, width: (3, height, width)),
}
_COLORS = ("colorspace", "color_range", "color_primaries", "color_trc")


class FramePacker:
    """Copies decoded frames into memory of their own.

    A decoder never frees the memory of a frame that was let go of: it has it ready for others, as many as it once had
    out at a time.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._pages = PicturePages(limit_bytes)

    def pack(self, frame: Any) -> tuple[PackedFrame, int]:
        """Give a frame as it is kept, and how many bytes that takes."""
        packed = frame if isinstance(frame, PackedFrame) else PackedFrame(frame, self._pages)
        return packed, packed.num_bytes

    def clear(self) -> None:
        """Give back the memory that lies ready for other frames."""
        self._pages.clear()


def _copy_planes(planes: Sequence[Any], pages: PicturePages) -> npt.NDArray[np.uint8]:
    """Copy the pixels of all planes, one after the other, without what a decoder has beyond the end of each line."""
    pixels = pages.take(sum(plane.width * plane.height for plane in planes))
    begin = 0
    for plane in planes:
        width, height, line = plane.width, plane.height, plane.line_size
        end = begin + width * height
        lines = np.frombuffer(plane, np.uint8, height * line).reshape(height, line)
        pixels[begin:end].reshape(height, width)[...] = lines[:, :width]
        begin = end
    return pixels


class PackedFrame:
    """A decoded frame to keep, not yet turned into RGB."""

    __slots__ = ("_colors", "_format", "_frame", "num_bytes")

    def __init__(self, frame: Any, pages: PicturePages) -> None:
        self._format: str = frame.format.name
        self._colors = tuple(getattr(frame, name) for name in _COLORS)
        if self._format not in _PACKED:
            self._frame = frame
            self.num_bytes = bytes_in_pages(sum(plane.buffer_size for plane in frame.planes))
            return
        self._frame = _copy_planes(frame.planes, pages).reshape(_PACKED[self._format](frame.height, frame.width))
        self.num_bytes = bytes_in_pages(self._frame.nbytes)

    def unpack(self) -> Any:
        """Give the frame."""
        if self._format not in _PACKED:
            return self._frame
        av = require("av", extra="video", purpose=PURPOSE)
        frame = av.VideoFrame.from_numpy_buffer(self._frame, format=self._format)
        for name, value in zip(_COLORS, self._colors, strict=True):
            setattr(frame, name, value)
        return frame


class RgbConverter:
    """Turns decoded frames into RGB, one thread at a time. Frames that did it themselves would start threads each."""

    def __init__(self) -> None:
        reformatter = require("av.video.reformatter", extra="video", purpose=PURPOSE)
        self._reformatter = reformatter.VideoReformatter()

    def convert(self, frame: Any) -> npt.NDArray[np.uint8]:
        """Give a frame, packed or not, as height, width, 3."""
        if isinstance(frame, PackedFrame):
            frame = frame.unpack()
        pixels: npt.NDArray[np.uint8] = self._reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
        return pixels
