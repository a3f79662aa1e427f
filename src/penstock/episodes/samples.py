"""What a frame of a robot episode is to a training loop: a dict of tensors, as LeRobot's own readers give it.

Windows in time become whole numbers of frames around one, which end at the ends of the episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.info import NUMBER_DTYPES
from penstock.errors import ConfigError, CorruptShardError, MissingExtraError
from penstock.extras import require
from penstock.formats.encodings.table import get_encoding
from penstock.reading.sample_rng import takes_rng

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    from penstock.episodes.info import Feature
    from penstock.reading.sample_rng import SampleRng
    from penstock.types import Int64Array, Sample

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


ImageTransform = Callable[..., Any]  # of a picture and, if it has an argument of that name, `rng`


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleOptions:
    """What a sample holds besides the frame itself, and how pictures are given.

    Pictures are float32 from 0 to 1, or bytes; `image_transforms` is called on each of them last. One that draws is
    called by `TransformedPictures`, when the position of the sample is known.
    """

    windows: Mapping[str, Int64Array] = field(default_factory=dict)  # offsets in frames by key
    tolerance_s: float = 0.0
    return_uint8: bool = False
    image_transforms: ImageTransform | None = None
    draws: bool = False  # whether `image_transforms` is given a generator


@dataclass(frozen=True, slots=True)
class TransformedPictures:
    """Calls a function that draws on each picture, or window of pictures, of a sample; then others on the sample."""

    transform: ImageTransform | None
    keys: Sequence[str]
    others: Sequence[Callable[..., Any]] = ()

    def __call__(self, sample: Sample, rng: SampleRng) -> Any:
        """Return the sample with other pictures."""
        made: Any = dict(sample)
        if self.transform is not None:
            made |= {key: self.transform(made[key], rng=rng) for key in self.keys}
        for other in self.others:
            made = other(made, rng=rng) if takes_rng(other) else other(made)
        return made


def as_array(feature: Feature, values: Any, where: str) -> Any:
    """Return the values of a column in the shape and type that the dataset declares, or as they are if not numbers."""
    dtype = NUMBER_DTYPES.get(feature.dtype)
    if dtype is None:
        return values
    try:
        array = np.asarray(values, dtype=dtype)
        if feature.dtype != feature.sample_dtype == "int64" and array.size and int(array.max()) >= 1 << 63:
            raise ValueError("a number is too large for int64, so read it with dtypes='stored'")
        return array.reshape(len(array), *(feature.shape if feature.shape != (1,) else ()))
    except (ValueError, TypeError) as error:
        raise CorruptShardError(
            f"{where} has values of {feature.key!r} that are not {feature.dtype} of shape {list(feature.shape)}:"
            f" {error}",
            column=feature.key,
        ) from error


@cache
def _torch() -> Any:
    return require("torch", extra="torch", purpose="samples of robot episodes")


def to_tensor(values: npt.NDArray[Any], dtype: str | None = None) -> Any:
    """Return a copy of numbers as a tensor, of another type if one is given; a single one has no dimensions."""
    return _torch().from_numpy(np.array(values, dtype))


def to_picture(pixels: npt.NDArray[Any], options: SampleOptions, feature: Feature | None = None) -> Any:
    """Return pictures, or windows of them, with their channels before height and width, as users of torch expect them.

    A picture that already lies in memory like that is not copied. Those of 16 bits are numbers as they were stored, or
    depths, if the feature says which.
    """
    torch = _torch()
    lying = np.ascontiguousarray(np.moveaxis(pixels, -1, -3))
    if lying.dtype == np.uint16:
        lying = lying if feature is None or feature.depth is None else feature.depth.lengths(lying)
    elif feature is not None and feature.is_deep:
        text = f"the pixels of {feature.key!r} are not one number of more than 8 bits: some of their bits would be lost"
        raise CorruptShardError(text, column=feature.key)
    elif not options.return_uint8:  # by NumPy: torch would have a pool of threads do it
        lying = np.divide(lying, np.float32(255), dtype=np.float32)
    picture = torch.from_numpy(lying)
    return picture if options.image_transforms is None or options.draws else options.image_transforms(picture)


def stack_pictures(pictures: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return several pictures as one array, with memory in the order in which `to_picture` gives them."""
    return np.moveaxis(np.stack([np.moveaxis(each, -1, 0) for each in pictures]), 1, -1)


def decode_image(value: Mapping[str, Any], where: str) -> npt.NDArray[Any]:
    """Decode an image of a file that does not mark it as one: a dict with its bytes."""
    try:
        pixels: npt.NDArray[Any] = get_encoding("png", "array").decode(value["bytes"])
    except MissingExtraError:
        raise
    except Exception as error:  # Pillow's errors are of many classes
        raise CorruptShardError(f"{where} has an image that cannot be decoded: {error}") from error
    if pixels.itemsize > 2:
        raise CorruptShardError(f"{where} has an image of 32 bits a pixel, which cannot be kept")
    return pixels
