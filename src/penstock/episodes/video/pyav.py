"""Videos decoded by PyAV, which brings FFmpeg along. Frames are kept as they come from the decoder, and not as RGB.

That takes half of the memory. Kept pictures have pages of their own, so that they can go back, and are used again, as
new ones cost time. As RGB, each color is by itself in memory where that gives the same pixels: training wants it so.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.video.backend import DEEP_GRAY, PURPOSE
from penstock.errors import CorruptShardError, ObjectNotFoundError
from penstock.extras import require
from penstock.formats.mp4.track import FrameIndex, read_frame_index

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    import numpy.typing as npt


class PyavBackend:
    """Decodes with PyAV."""

    pixel_bytes = 1.5  # of three colors, two have a quarter of the size

    def open(self, path: str, name: str) -> PyavFile:
        """Open a file."""
        return PyavFile(path, name)

    def make_pictures(self, limit_bytes: int) -> PyavPictures:
        """Return what keeps frames, and turns them into RGB."""
        return PyavPictures(limit_bytes)


def _made(frame: Any) -> Any:
    return frame


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

    def decode(self, first: int, last: int) -> Iterator[tuple[int, Callable[[], Any]]]:
        """Decode from one frame to another, and all others on the way to the first."""
        try:
            for number, frame in self._decode(first, last):
                yield number, partial(_made, frame)
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


_MAYBE_BY_COLOR = frozenset(["yuv420p", "yuvj420p", "yuv422p", "yuvj422p", "yuv444p", "yuvj444p"])
_NOT_KEPT = ("grayf", "ya16", "yaf")  # numbers with a point, or a second channel
_PLACES = (1, 2, 0)  # of green, blue and red, as FFmpeg has them, in RGB


class PyavPictures:
    """Copies decoded frames into memory of their own, and turns them into RGB, one thread at a time.

    A decoder never frees the memory of a frame that was let go of: it has it ready for others, as many as it once had
    out at a time. And frames that turned themselves into RGB would start threads each.
    """

    def __init__(self, limit_bytes: int = 0) -> None:
        self._pages = PicturePages(limit_bytes)
        reformatter = require("av.video.reformatter", extra="video", purpose=PURPOSE)
        self._reformatter = reformatter.VideoReformatter()
        self._is_by_color: dict[Hashable, bool] = {}  # by kind of frame

    def pack(self, frame: Any) -> tuple[PackedFrame, int]:
        """Return a frame as it is kept, and how many bytes that takes; for any thread."""
        packed = frame if isinstance(frame, PackedFrame) else PackedFrame(frame, self._pages)
        return packed, packed.num_bytes

    def clear(self) -> None:
        """Release the memory that lies ready for other frames."""
        self._pages.clear()

    def to_rgb(self, frame: Any) -> npt.NDArray[Any]:
        """Return a frame as height, width, 3, in memory of its own, colors maybe apart; deep gray has one channel."""
        if isinstance(frame, PackedFrame):
            frame = frame.unpack()
        if DEEP_GRAY.fullmatch(frame.format.name):
            numbers: npt.NDArray[np.uint16] = frame.to_ndarray()
            return numbers[..., np.newaxis]
        if frame.format.name.startswith(_NOT_KEPT):
            raise CorruptShardError(f"its pixels have the format {frame.format.name}, whose bits cannot be kept")
        return np.moveaxis(self._by_color(frame), 0, -1) if self._can_go_by_color(frame) else self._by_pixel(frame)

    def _can_go_by_color(self, frame: Any) -> bool:
        """Return whether FFmpeg gives the same pixels either way, which depends on the size of a frame: try, once."""
        name = frame.format.name
        if name not in _MAYBE_BY_COLOR:
            return False
        kind = name, frame.width, frame.height, frame.colorspace, frame.color_range
        known = self._is_by_color.get(kind)
        if known is None:
            noise = _noise_like(frame)
            is_same = np.array_equal(np.moveaxis(self._by_color(noise), 0, -1), self._by_pixel(noise))
            known = self._is_by_color[kind] = is_same
        return known

    def _by_pixel(self, frame: Any) -> npt.NDArray[np.uint8]:
        pixels: npt.NDArray[np.uint8] = self._reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
        return pixels

    def _by_color(self, frame: Any) -> npt.NDArray[np.uint8]:
        """Return a frame as 3, height, width: a quarter of the time that it takes to sort the colors afterwards."""
        height, width = frame.height, frame.width
        pixels = np.empty((3, height, width), np.uint8)
        for place, plane in zip(
            _PLACES, self._reformatter.reformat(frame, format="gbrp", threads=1).planes, strict=True
        ):
            line = plane.line_size
            pixels[place] = np.frombuffer(plane, np.uint8, height * line).reshape(height, line)[:, :width]
        return pixels


def _noise_like(frame: Any) -> Any:
    """Return a frame of the same kind with pixels of all colors."""
    av = require("av", extra="video", purpose=PURPOSE)
    noise = av.VideoFrame(frame.width, frame.height, frame.format.name)
    noise.colorspace, noise.color_range = frame.colorspace, frame.color_range
    random = np.random.default_rng(0)
    for plane in noise.planes:
        plane.update(random.bytes(plane.buffer_size))
    return noise


_HALF_COLORS = ("yuv420p", "yuvj420p")  # two of three colors have a quarter of the pixels
_PACKED = frozenset([*_HALF_COLORS, "yuv422p", "yuvj422p", "yuv444p", "yuvj444p"])  # a byte for each pixel of a color
_COLORS = ("colorspace", "color_range", "color_primaries", "color_trc")


def _lines_of(plane: Any) -> npt.NDArray[np.uint8]:
    """Return the pixels of a plane, without what a decoder has beyond the end of each line."""
    height, line = plane.height, plane.line_size
    return np.frombuffer(plane, np.uint8, height * line).reshape(height, line)[:, : plane.width]


def _copy_planes(planes: Sequence[Any], pages: PicturePages) -> npt.NDArray[np.uint8]:
    """Copy the pixels of all planes, one after the other."""
    pixels = pages.take(sum(plane.width * plane.height for plane in planes))
    begin = 0
    for plane in planes:
        lines = _lines_of(plane)
        pixels[begin : begin + lines.size].reshape(lines.shape)[...] = lines
        begin += lines.size
    return pixels


class PackedFrame:
    """A decoded frame to keep, not yet turned into RGB."""

    __slots__ = ("_colors", "_format", "_frame", "_height", "_width", "num_bytes")

    def __init__(self, frame: Any, pages: PicturePages) -> None:
        self._format: str = frame.format.name
        self._height, self._width = frame.height, frame.width
        self._colors = tuple(getattr(frame, name) for name in _COLORS)
        if self._format not in _PACKED:
            self._frame = frame
            self.num_bytes = bytes_in_pages(sum(plane.buffer_size for plane in frame.planes))
            return
        self._frame = _copy_planes(frame.planes, pages)
        self.num_bytes = bytes_in_pages(self._frame.nbytes)

    def unpack(self) -> Any:
        """Return the frame."""
        if self._format not in _PACKED:
            return self._frame
        frame = self._unpack()
        for name, value in zip(_COLORS, self._colors, strict=True):
            setattr(frame, name, value)
        return frame

    def _unpack(self) -> Any:
        frames = require("av", extra="video", purpose=PURPOSE).VideoFrame
        height, width = self._height, self._width
        if self._format in _HALF_COLORS and height % 4 == 0 and width % 2 == 0:
            return frames.from_numpy_buffer(self._frame.reshape(height * 3 // 2, width), format=self._format)
        frame = frames(width, height, self._format)  # of other sizes PyAV makes frames that lack lines
        begin = 0
        for plane in frame.planes:
            lines = _lines_of(plane)
            lines[...] = self._frame[begin : begin + lines.size].reshape(lines.shape)
            begin += lines.size
        return frame


LARGE_PICTURE_BYTES = 256 << 10  # smaller ones lie between other things
_MOST_BESIDE = 8 << 20  # for a picture that comes just before another goes


def bytes_in_pages(num_bytes: int) -> int:
    """Return how much memory so many bytes take."""
    if num_bytes < LARGE_PICTURE_BYTES:
        return num_bytes
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


class PicturePages:
    """Gives memory for pictures, and keeps what comes back for others of the same size. Safe for threads.

    The system clears pages before it gives them, which takes many times as long as it takes to write a picture. And in
    an order that fits the video almost all pictures go before the next ones come.

    Args:
        limit_bytes: When pictures and what lies ready take a little more than this, memory goes back to the system.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes + min(_MOST_BESIDE, limit_bytes // 8)
        self._free: defaultdict[int, list[mmap.mmap]] = defaultdict(list)
        self._process = os.getpid()
        self._lock = threading.RLock()  # a picture may go whenever the garbage collector comes by
        self.num_bytes = self.num_free_bytes = 0

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return memory for a picture; it comes back when the array is gone, and every view of it."""
        if num_bytes < LARGE_PICTURE_BYTES:
            return np.empty(num_bytes, np.uint8)
        with self._lock:
            free = self._free[num_bytes]
            pages = free.pop() if free else None
            if pages is not None:
                self.num_free_bytes -= bytes_in_pages(num_bytes)
            elif self.num_bytes + num_bytes > self._limit:  # the rest is for pictures of other sizes
                self.clear()
        if pages is None:
            try:
                pages = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except OSError:  # there are too many
                return np.empty(num_bytes, np.uint8)
            with self._lock:
                self.num_bytes += bytes_in_pages(num_bytes)
        picture = np.frombuffer(pages, np.uint8)
        weakref.finalize(picture, self._take_back, pages).atexit = False
        return picture

    def _take_back(self, pages: mmap.mmap) -> None:
        if os.getpid() != self._process:  # in a forked child: another thread may have had the lock
            return
        num_bytes = len(pages)
        size = bytes_in_pages(num_bytes)
        with self._lock:
            if self.num_bytes > self._limit:
                self.num_bytes -= size
            else:
                self._free[num_bytes].append(pages)
                self.num_free_bytes += size

    def clear(self) -> None:
        """Release to the system what lies ready."""
        with self._lock:
            self._free.clear()
            self.num_bytes -= self.num_free_bytes
            self.num_free_bytes = 0
