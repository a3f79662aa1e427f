"""What each frame of a dataset to be written must hold: declared by the user or read off the first frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.info import NUMBER_DTYPES, Feature, parse_feature
from penstock.episodes.writing.pictures import as_picture, as_pixels, looks_like_picture
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
        return as_picture(value, feature.shape, feature.key)
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
    if not np.can_cast(given.dtype, wanted, "same_kind") and not _is_same_kind(given, wanted):
        raise _misfit(ColumnTypeError, value, feature)
    with np.errstate(over="ignore"):
        stored = given.astype(wanted).reshape(shape)
    if wanted.kind in "iu" and not np.array_equal(stored, given.reshape(shape)):
        raise _misfit(ColumnRangeError, value, feature)
    return stored


def _is_same_kind(given: npt.NDArray[Any], wanted: np.dtype[Any]) -> bool:
    """Whole numbers are whole numbers, with a sign or without; whether they fit is seen when they are stored."""
    return given.dtype.kind in "iu" and wanted.kind in "iu"


def _misfit(kind: type[BadSampleError], value: Any, feature: Feature) -> BadSampleError:
    shape = getattr(value, "shape", None)
    found = f"{type(value).__name__} of shape {list(shape)}" if shape is not None else f"{value!r:.60}"
    return kind(
        f"{feature.key!r} is a {feature.dtype} of shape {list(feature.shape)}, but the frame has {found}",
        column=feature.key,
    )
