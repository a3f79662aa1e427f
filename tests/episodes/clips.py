"""Small videos whose frames carry their numbers, made with PyAV."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import av
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SIZE = 64


def picture(number: int) -> np.ndarray[Any, Any]:
    """Draw a number as 12 stripes, the first one the highest bit."""
    pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
    for bit in range(12):
        if number >> (11 - bit) & 1:
            pixels[:, bit * 5 : bit * 5 + 5] = 255
    return pixels


def number_of(pixels: np.ndarray[Any, Any]) -> int:
    """Read the number of a picture (height, width, 3) back."""
    stripes = [pixels[:, bit * 5 + 1 : bit * 5 + 4].mean() > 127 for bit in range(12)]
    return int("".join("1" if stripe else "0" for stripe in stripes), 2)


def write_clip(
    path: Path,
    num_frames: int,
    *,
    gop: int,
    fps: int = 10,
    b_frames: int = 0,
    first: int = 0,
    noise: int = 0,
    encoder: Mapping[str, str] | None = None,
    **options: str,
) -> None:
    """Write an h264 video; with noise it has many bytes. `options` are those of the container."""
    random = np.random.default_rng(first)
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("libx264", rate=fps)
        stream.width = stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        stream.time_base = Fraction(1, fps)
        stream.options = {"g": str(gop), "bf": str(b_frames), "sc_threshold": "0", "preset": "ultrafast", "crf": "18"}
        if b_frames:
            stream.options |= {"b-adapt": "0"}
        stream.options |= encoder or {}
        for number in range(first, first + num_frames):
            pixels = picture(number)
            if noise:
                pixels = np.where(pixels > 127, 255 - noise, 0).astype(np.uint8)
                pixels += random.integers(0, noise, pixels.shape, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = number - first
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
