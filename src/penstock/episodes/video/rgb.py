"""Frames of PyAV as RGB, each color by itself in memory where that gives the same pixels: training wants it so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.video.backend import DEEP_GRAY, PURPOSE
from penstock.episodes.video.packed import PackedFrame
from penstock.errors import CorruptShardError
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Hashable

    import numpy.typing as npt

_MAYBE_BY_COLOR = frozenset(["yuv420p", "yuvj420p", "yuv422p", "yuvj422p", "yuv444p", "yuvj444p"])
_NOT_KEPT = ("grayf", "ya16", "yaf")  # numbers with a point, or a second channel
_PLACES = (1, 2, 0)  # of green, blue and red, as FFmpeg has them, in RGB


class RgbConverter:
    """Turns decoded frames into RGB, one thread at a time. Frames that did it themselves would start threads each."""

    def __init__(self) -> None:
        reformatter = require("av.video.reformatter", extra="video", purpose=PURPOSE)
        self._reformatter = reformatter.VideoReformatter()
        self._is_by_color: dict[Hashable, bool] = {}  # by kind of frame

    def convert(self, frame: Any) -> npt.NDArray[Any]:
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
