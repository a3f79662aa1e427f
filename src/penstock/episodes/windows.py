"""Windows in time around a frame: seconds become whole numbers of frames, which end at the ends of the episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt

    from penstock.types import Int64Array

_MOST_FRAMES = 2.0**40


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Which frames of an episode are wanted for each of some frames, and which of these lie outside of it."""

    frames: Int64Array  # (wanted frames, offsets), each within the episode
    is_pad: npt.NDArray[np.bool_]  # the same shape: the nearest frame of the episode stands here for one outside


def frame_offsets(seconds: Sequence[float], fps: float, tolerance_s: float, key: str = "") -> Int64Array:
    """Turn offsets in seconds into offsets in frames; each must be a multiple of 1/fps, within the tolerance."""
    given = np.asarray(seconds, dtype=np.float64)
    if given.ndim != 1 or not len(given) or not (np.abs(given * fps) < _MOST_FRAMES).all():  # NaN is not, either
        raise ConfigError(f"delta_timestamps[{key!r}] must be a list of seconds, got {seconds!r:.100}")
    frames = np.rint(given * fps)
    # Not quite the tolerance itself: half a frame at 5 fps is 0.1, which no float is.
    off = np.abs(frames / fps - given) > tolerance_s + 1e-12
    if off.any():
        bad = float(given[off][0])
        raise ConfigError(
            f"delta_timestamps[{key!r}] has {bad}, which is not a multiple of 1/{fps:g} second within"
            f" tolerance_s={tolerance_s}: use multiples of {1 / fps:g}",
            key=key,
        )
    return frames.astype(np.int64)


def parse_windows(
    delta_timestamps: Mapping[str, Sequence[float]] | None, keys: Collection[str], fps: float, tolerance_s: float
) -> dict[str, Int64Array]:
    """Turn what a user asks for into frame offsets by key; keys that the dataset does not have are an error."""
    windows = {}
    for key, seconds in (delta_timestamps or {}).items():
        if key not in keys:
            raise ConfigError(
                f"delta_timestamps names {key!r}, which is no feature of the dataset: use {', '.join(keys)}", key=key
            )
        windows[key] = frame_offsets(seconds, fps, tolerance_s, key)
    return windows


def window_of(frames: Int64Array, offsets: Int64Array, length: int) -> Window:
    """Return for each frame of an episode of `length` frames those at the offsets, held at the ends of the episode."""
    wanted = frames[:, None] + offsets[None, :]
    clamped = np.clip(wanted, 0, length - 1)
    return Window(clamped, wanted != clamped)
