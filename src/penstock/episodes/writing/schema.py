"""What each frame of a dataset to be written must hold, declared by the user or read off the first frame; pictures."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.episodes.info import NUMBER_DTYPES, Feature, parse_feature
from penstock.errors import (
    BadIndexError,
    BadSampleError,
    ColumnRangeError,
    ColumnTypeError,
    ColumnValueError,
    ConfigError,
    ExtraColumnError,
    MissingColumnError,
)
from penstock.extras import require

if TYPE_CHECKING:
    import numpy.typing as npt

# What the writer adds to each frame, after the user's own features.
ADDED = {
    "timestamp": Feature(key="timestamp", dtype="float32", shape=(1,)),
    "frame_index": Feature(key="frame_index", dtype="int64", shape=(1,)),
    "episode_index": Feature(key="episode_index", dtype="int64", shape=(1,)),
    "index": Feature(key="index", dtype="int64", shape=(1,)),
    "task_index": Feature(key="task_index", dtype="int64", shape=(1,)),
}
_MAX_DIMENSIONS = 5  # of arrays, as the features of the Hub know them
_CHANNELS = (1, 3)
_PURPOSE = "pictures of robot episodes"
_PICTURE_NAMES = ["height", "width", "channels"]


def declare_features(given: Mapping[str, Any]) -> dict[str, Feature]:
    """Check the features that a user declares: dtype and shape by key, maybe names."""
    features = {}
    for key, schema in given.items():
        if key in ADDED or key == "task":
            raise ConfigError(f"the feature {key!r} is added by the writer: leave it out of features=")
        try:
            feature = parse_feature(key, schema, "features=")
        except BadIndexError as error:
            raise ConfigError(error.message, key=key) from error
        features[key] = _check_feature(feature)
    if not features:
        raise ConfigError("features= is empty: name at least one feature")
    return features


def _check_feature(feature: Feature) -> Feature:
    key, shape = feature.key, feature.shape
    if not feature.is_camera:
        if feature.dtype != "string" and feature.dtype not in NUMBER_DTYPES:
            known = ", ".join([*NUMBER_DTYPES, "string", "image", "video"])
            raise ConfigError(f"the feature {key!r} has the dtype {feature.dtype!r}: use one of {known}", key=key)
        if not 1 <= len(shape) <= _MAX_DIMENSIONS or 0 in shape:
            raise ConfigError(
                f"the feature {key!r} has the shape {list(shape)}: use [1] for a single value, and 1 to 5 lengths from"
                " 1 on",
                key=key,
            )
        return feature
    if len(shape) != 3 or shape[-1] not in _CHANNELS or 0 in shape:
        raise ConfigError(
            f"the picture {key!r} has the shape {list(shape)}: use [height, width, channels], with 3 channels or 1",
            key=key,
        )
    if feature.is_video and (shape[-1] != 3 or shape[0] % 2 or shape[1] % 2):
        raise ConfigError(
            f"the video {key!r} has the shape {list(shape)}: videos have 3 channels, and an even height and width",
            key=key,
        )
    return Feature(key=key, dtype=feature.dtype, shape=shape, names=feature.names or _PICTURE_NAMES)


def infer_features(frame: Mapping[str, Any], pictures: str) -> dict[str, Feature]:
    """Read the features off a frame; `pictures` says whether its pictures are to be stored as `video` or `image`."""
    return declare_features(
        {key: _infer(key, value, pictures) for key, value in frame.items() if key not in ADDED and key != "task"}
    )


def _infer(key: str, value: Any, pictures: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"dtype": "string", "shape": [1]}
    if looks_like_picture(value):
        return {"dtype": pictures, "shape": list(as_pixels(value, None, key).shape)}
    array = np.asarray(value)
    if array.dtype.name not in NUMBER_DTYPES:
        raise ColumnTypeError(
            f"{key!r} holds a {type(value).__name__} that is no number, array, string or picture: pass features=, or"
            " leave it out",
            column=key,
        )
    return {"dtype": array.dtype.name, "shape": list(array.shape) or [1]}


def check_frame(frame: Mapping[str, Any], features: Mapping[str, Feature]) -> dict[str, Any]:
    """Return the values of a frame as they are stored; errors name what does not fit."""
    if not isinstance(frame, Mapping):
        raise ColumnTypeError(f"a frame must be a dict of features, got {type(frame).__name__}")
    for key in features:
        if key not in frame:
            raise MissingColumnError(f"the feature {key!r} is missing", column=key)
    for key in frame:
        if key not in features:
            what = "which the writer adds itself" if key in ADDED else "which is not among the features"
            raise ExtraColumnError(f"it has {key!r}, {what}: leave it out", column=key)
    return {key: _check_value(frame[key], feature) for key, feature in features.items()}


def _check_value(value: Any, feature: Feature) -> Any:
    if feature.is_camera:
        pixels = as_pixels(value, feature.shape, feature.key)
        return Picture(pixels, value if isinstance(value, bytes) else None)
    if feature.dtype == "string":
        return _check_strings(value, feature)
    return _check_numbers(value, feature)


def _check_strings(value: Any, feature: Feature) -> str | list[str]:
    if feature.shape == (1,) and isinstance(value, str):
        return value
    is_list = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    if is_list and feature.shape == (len(value),) != (1,):
        return list(value)
    raise _misfit(ColumnTypeError, value, feature)


def _check_numbers(value: Any, feature: Feature) -> npt.NDArray[Any]:
    wanted = np.dtype(feature.dtype)
    try:
        given = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor that is elsewhere, or needs gradients
        raise _misfit(ColumnTypeError, value, feature) from error
    if given.dtype.kind not in "biuf":
        raise _misfit(ColumnTypeError, value, feature)
    shape = () if feature.shape == (1,) else feature.shape
    if given.shape not in (shape, feature.shape):
        raise _misfit(ColumnValueError, value, feature)
    # Whole numbers are whole numbers, with a sign or without; whether they fit is seen when they are stored.
    are_whole = given.dtype.kind in "iu" and wanted.kind in "iu"
    if not are_whole and not np.can_cast(given.dtype, wanted, "same_kind"):
        raise _misfit(ColumnTypeError, value, feature)
    with np.errstate(over="ignore"):
        stored = given.astype(wanted).reshape(shape)
    if wanted.kind in "iu" and not np.array_equal(stored, given.reshape(shape)):
        raise _misfit(ColumnRangeError, value, feature)
    return stored


def _misfit(kind: type[BadSampleError], value: Any, feature: Feature) -> BadSampleError:
    shape = getattr(value, "shape", None)
    found = f"{type(value).__name__} of shape {list(shape)}" if shape is not None else f"{value!r:.60}"
    return kind(
        f"{feature.key!r} is a {feature.dtype} of shape {list(feature.shape)}, but the frame has {found}",
        column=feature.key,
    )


# --- Pictures -------------------------------------------------------------------------------------------------


def looks_like_picture(value: Any) -> bool:
    """Return whether a value is a picture rather than an array.

    Pictures are PIL images, encoded ones, and arrays of bytes with 1 or 3 channels last or first.
    """
    if isinstance(value, bytes) or hasattr(value, "getbands"):
        return True
    shape: tuple[int, ...] = tuple(getattr(value, "shape", ()))
    is_bytes = str(getattr(value, "dtype", "")).endswith("uint8")
    return is_bytes and len(shape) == 3 and (shape[-1] in _CHANNELS or shape[0] in _CHANNELS)


def as_pixels(value: Any, shape: tuple[int, ...] | None, key: str) -> npt.NDArray[np.uint8]:
    """Return a picture as height, width, channels; it must have this shape if one is given.

    Encoded pictures and PIL images are decoded, floats from 0 to 1 become bytes, and channels may come first.
    """
    if isinstance(value, bytes):
        value = _decode(value, key)
    if hasattr(value, "getbands"):
        value = value.convert("L" if shape is not None and shape[-1] == 1 else "RGB")
    pixels = np.asarray(value)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim == 3 and pixels.shape != shape and _is_channels_first(pixels.shape, shape):
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim != 3 or pixels.shape[-1] not in _CHANNELS or (shape is not None and pixels.shape != shape):
        wanted = "[height, width, channels]" if shape is None else f"shape {list(shape)}"
        raise ColumnValueError(f"{key!r} is a picture of {wanted}, but the frame has {list(pixels.shape)}", column=key)
    return np.ascontiguousarray(_as_bytes(pixels, key))


def _is_channels_first(given: tuple[int, ...], wanted: tuple[int, ...] | None) -> bool:
    if wanted is not None:
        return (*given[1:], given[0]) == wanted
    return given[0] in _CHANNELS and given[-1] not in _CHANNELS


def _as_bytes(pixels: npt.NDArray[Any], key: str) -> npt.NDArray[np.uint8]:
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind != "f":
        raise ColumnTypeError(f"{key!r} is a picture of {pixels.dtype}: use uint8, or floats from 0 to 1", column=key)
    if not (pixels.min() >= 0 and pixels.max() <= 1):  # NaN is neither
        raise ColumnValueError(f"{key!r} is a picture of floats that are not all from 0 to 1", column=key)
    rounded: npt.NDArray[np.uint8] = np.rint(pixels * 255).astype(np.uint8)
    return rounded


def _decode(data: bytes, key: str) -> Any:
    images = require("PIL.Image", extra="images", purpose=_PURPOSE)
    try:
        image = images.open(io.BytesIO(data))
        image.load()
    except (OSError, SyntaxError, images.DecompressionBombError) as error:
        raise ColumnValueError(f"{key!r} holds bytes that are no picture: {error}", column=key) from error
    return image


class Picture(NamedTuple):
    """A picture, and the bytes that it came as if it was encoded already."""

    pixels: npt.NDArray[np.uint8]
    encoded: bytes | None

    def as_file(self) -> bytes:
        """Return it as a file: the one that it came as, or a PNG."""
        if self.encoded is not None:
            return self.encoded
        images = require("PIL.Image", extra="images", purpose=_PURPOSE)
        file = io.BytesIO()
        pixels = self.pixels[..., 0] if self.pixels.shape[-1] == 1 else self.pixels
        images.fromarray(pixels).save(file, "PNG", compress_level=1)
        return file.getvalue()
