"""What `meta/info.json` of a LeRobot dataset says: rate, features, and how files are named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import log, nan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.errors import BadIndexError
from penstock.outside_text import NAME_CHARACTERS, Bounded
from penstock.storage.base import check_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

INFO_NAME = "meta/info.json"
_VERSION = Bounded(r"v?(\d{1,4})\.(\d{1,4})(\.\d{1,4})?", 16)
_READABLE = ("2.0", "2.1", "3.0")
# A template may hold names and numbers with leading zeros, and no other words of Python's.
_FIELD = Bounded(r"\{([a-z_]+)(?::0?(\d{1,2})d)?\}", NAME_CHARACTERS)
_MAX_DIMENSIONS = 8
_MAX_VALUES = 1 << 28  # of one feature in one frame

DEFAULT_PATHS = {
    2: (
        "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    ),
    3: (
        "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    ),
}


# Samples always have these, under these names.
ALWAYS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_KINDS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBER_DTYPES = {name: np.dtype(name) for name in (*_KINDS, "bool")}
_DEEP = Bounded(r"(gray|yuv[a-z0-9]*p|p0)(9|1[0246])[bl]e", 64)  # pixels of more than 8 bits
_FAR = 1e9  # meters
_DEPTH_CODES = 4095  # the largest number in LeRobot's depth maps


class DepthScale(NamedTuple):
    """What the numbers in a video of depths stand for, as LeRobot writes them."""

    nearest: float  # in meters
    farthest: float
    shift: float | None  # in meters, before taking logarithms; None: numbers grow with depths
    unit: str  # "m", or "mm", which are rounded

    def lengths(self, codes: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
        """Return the depths, in the unit."""
        near, far = (each if self.shift is None else log(each + self.shift) for each in self[:2])
        meters = codes.astype(np.float32) * ((far - near) / _DEPTH_CODES) + near
        if self.shift is not None:
            meters = np.exp(meters) - self.shift
        meters = meters.clip(self.nearest, self.farthest)
        return meters if self.unit == "m" else np.rint(meters * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One entry of each frame: what it is called, what it holds, and in which shape."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    is_deep: bool = False  # whether it is a video with one channel of more than 8 bits
    depth: DepthScale | None = None
    is_stored: bool = False  # whether samples have its numbers in the type that they are stored in

    @property
    def sample_dtype(self) -> str:
        """The type of its numbers in samples: LeRobot has float32 and int64, whatever is stored."""
        if self.is_stored or self.dtype not in NUMBER_DTYPES or self.dtype == "bool":
            return self.dtype
        return "float32" if self.dtype.startswith("float") else "int64"

    @property
    def is_video(self) -> bool:
        """Whether its frames are in video files."""
        return self.dtype == "video"

    @property
    def is_image(self) -> bool:
        """Whether it is an image of its own in the rows."""
        return self.dtype == "image"

    @property
    def is_camera(self) -> bool:
        """Whether it is a picture, wherever it is stored."""
        return self.is_video or self.is_image

    @property
    def row_bytes(self) -> int:
        """About how many bytes one frame of it takes in the rows: nothing if it is a video."""
        return 0 if self.is_video else self.frame_bytes // (4 if self.is_image else 1)

    @property
    def num_pixels(self) -> int:
        """How many pixels one frame of it has, if it is a picture: three colors each, or one number."""
        return self.frame_bytes // (4 if 1 in (self.shape[:1] + self.shape[-1:]) else 12)

    @property
    def frame_bytes(self) -> int:
        """About how much memory one frame of it takes, as numbers of one to eight bytes."""
        size = 1
        for length in self.shape:
            size *= length
        return size * (4 if self.is_camera else 8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetInfo:
    """`meta/info.json`, checked: the values that reading needs, and all of it in `info`."""

    version: tuple[int, int]
    fps: float  # of all rows and all cameras
    schema: Mapping[str, Feature]
    data_path: str  # how data files are named
    video_path: str | None  # how video files are named; None: there are none
    chunks_size: int  # how many files a folder holds; of v2.1, how many episodes
    info: Mapping[str, Any]

    @property
    def video_keys(self) -> list[str]:
        """The features whose frames are in video files."""
        return [key for key, feature in self.schema.items() if feature.is_video]

    @property
    def image_keys(self) -> list[str]:
        """The features that are images in the rows."""
        return [key for key, feature in self.schema.items() if feature.is_image]

    @property
    def camera_keys(self) -> list[str]:
        """All pictures: videos and images."""
        return [key for key, feature in self.schema.items() if feature.is_camera]


def parse_info(data: bytes, where: str) -> DatasetInfo:
    """Read `meta/info.json`; unknown fields are left alone."""
    raw = parse_json(data, where)
    if not isinstance(raw, dict):
        raise BadIndexError(f"{where} is not a JSON object: this is no LeRobot dataset", file=where)
    version = _parse_version(raw.get("codebase_version"), where)
    data_path, video_path = DEFAULT_PATHS[version[0]]
    if "video_path" in raw:
        video_path = raw["video_path"]
    fps, chunks_size, features = raw.get("fps"), raw.get("chunks_size", 1000), raw.get("features")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1e6:
        raise BadIndexError(f"{where} has fps={fps!r}: it must be a positive number", file=where)
    if isinstance(chunks_size, bool) or not isinstance(chunks_size, int) or chunks_size < 1:
        raise BadIndexError(f"{where} has chunks_size={chunks_size!r}: it must be 1 or more", file=where)
    if not isinstance(features, dict) or not features:
        raise BadIndexError(f"{where} declares no features", file=where)
    return DatasetInfo(
        version=version,
        fps=fps,
        schema={key: parse_feature(key, schema, where) for key, schema in features.items()},
        data_path=str(raw.get("data_path") or data_path),
        video_path=None if video_path is None else str(video_path),
        chunks_size=chunks_size,
        info=raw,
    )


def parse_json(data: bytes, where: str) -> Any:
    """Read JSON, or say which file is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadIndexError(f"{where} is not valid JSON: {error}", file=where) from error


def fill_path(template: str, where: str, **values: int | str) -> str:
    """Fill numbers and a key into the name of a file; what leads out of the dataset is refused."""

    def fill(match: Any) -> str:
        name, width = match.groups()
        if name not in values:
            raise BadIndexError(f"{where} names files by {template!r}, but {{{name}}} is unknown", template=template)
        value = values[name]
        return str(value) if width is None else f"{int(value):0{width}d}"

    key = _FIELD.sub(fill, template)
    if len(template) > NAME_CHARACTERS or "{" in _FIELD.sub("", template):
        raise BadIndexError(f"{where} names files by {template!r:.200}, which cannot be understood", template=template)
    try:
        return check_key(key)
    except ValueError as error:
        raise BadIndexError(f"{where} names a file outside its dataset: {key!r}", template=template) from error


def _parse_version(given: Any, where: str) -> tuple[int, int]:
    match = _VERSION.fullmatch(str(given))
    version = None if match is None else (int(match.group(1)), int(match.group(2)))
    if version is None or version[0] not in DEFAULT_PATHS:
        raise BadIndexError(
            f"{where} has codebase_version={given!r}, but versions {', '.join(_READABLE)} are readable: convert the"
            " dataset with the tools of lerobot",
            file=where,
        )
    return version


def parse_feature(key: str, schema: Any, where: str) -> Feature:
    """Read what is declared of one feature."""
    if not isinstance(schema, dict) or not isinstance(schema.get("dtype"), str) or "/" in key:
        raise BadIndexError(f"{where} declares the feature {key!r} without a dtype, or with a / in its name", key=key)
    shape = schema.get("shape") or ()
    if not isinstance(shape, list | tuple) or len(shape) > _MAX_DIMENSIONS:
        raise BadIndexError(f"{where} gives the feature {key!r} the shape {shape!r:.80}, which is none", key=key)
    size = 1
    for length in shape:
        if isinstance(length, bool) or not isinstance(length, int) or length < 0:
            raise BadIndexError(f"{where} gives the feature {key!r} the shape {shape!r:.80}, which is none", key=key)
        size *= length
    if size > _MAX_VALUES:
        raise BadIndexError(f"{where} gives the feature {key!r} {size} values in each frame: that is too many", key=key)
    is_deep, depth = _parse_pixels(key, schema, where) if schema["dtype"] == "video" else (False, None)
    names = schema.get("names")
    return Feature(key=key, dtype=schema["dtype"], shape=tuple(shape), names=names, is_deep=is_deep, depth=depth)


def _parse_pixels(key: str, schema: Mapping[str, Any], where: str) -> tuple[bool, DepthScale | None]:
    """Read whether the pixels of a video have more than 8 bits that count, and which depths these are."""
    parts = [part for part in (schema.get("video_info"), schema.get("info")) if isinstance(part, dict)]
    notes = {str(name).removeprefix("video."): value for part in parts for name, value in part.items()}
    is_depth, deep = notes.get("is_depth_map") is True, _DEEP.fullmatch(str(notes.get("pix_fmt")))
    if not is_depth or not {"depth_min", "depth_max"} <= notes.keys():
        return deep is not None and (is_depth or deep[1] == "gray"), None
    values = [notes.get(name, 3.5) for name in ("depth_min", "depth_max", "shift")]
    nearest, farthest, shift = (each if type(each) in (int, float) else nan for each in values)
    is_log, unit = bool(notes.get("use_log", True)), notes.get("depth_unit", "mm")
    is_range = all(-_FAR < each < _FAR for each in (nearest, farthest, shift)) and nearest < farthest
    if not is_range or (is_log and nearest + shift <= 0) or unit not in ("m", "mm"):
        raise BadIndexError(f"{where} gives the feature {key!r} a range of depths that cannot be understood", key=key)
    return True, DepthScale(nearest, farthest, shift if is_log else None, unit)
