"""Frames of PyAV in memory of their own, as they came from the decoder: that takes half of what RGB would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.video.backend import PURPOSE
from penstock.episodes.video.pages import PicturePages, bytes_in_pages
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_HALF_COLORS = ("yuv420p", "yuvj420p")  # two of three colors have a quarter of the pixels
_PACKED = frozenset([*_HALF_COLORS, "yuv422p", "yuvj422p", "yuv444p", "yuvj444p"])  # a byte for each pixel of a color
_COLORS = ("colorspace", "color_range", "color_primaries", "color_trc")


class FramePacker:
    """Copies decoded frames into memory of their own.

    A decoder never frees the memory of a frame that was let go of: it has it ready for others, as many as it once had
    out at a time.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._pages = PicturePages(limit_bytes)

    def pack(self, frame: Any) -> tuple[PackedFrame, int]:
        """Return a frame as it is kept, and how many bytes that takes."""
        packed = frame if isinstance(frame, PackedFrame) else PackedFrame(frame, self._pages)
        return packed, packed.num_bytes

    def clear(self) -> None:
        """Release the memory that lies ready for other frames."""
        self._pages.clear()


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
