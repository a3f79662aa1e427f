"""Frames of every kind, numbered through all episodes, for writers of datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import LeRobotWriter
from tests.episodes.clips import SIZE, picture

if TYPE_CHECKING:
    from pathlib import Path

TOP, IMAGE = "observation.images.top", "observation.image"
FEATURES: dict[str, Any] = {
    TOP: {"dtype": "video", "shape": [SIZE, SIZE, 3]},
    IMAGE: {"dtype": "image", "shape": [8, 8, 3]},
    "action": {"dtype": "float32", "shape": [3], "names": ["x", "y", "grip"]},
    "matrix": {"dtype": "float32", "shape": [2, 3]},
    "reward": {"dtype": "float32", "shape": [1]},
    "done": {"dtype": "bool", "shape": [1]},
    "note": {"dtype": "string", "shape": [1]},
}
LENGTHS = [9, 4, 1, 12, 6]
TASKS = ["lift", "place"]
SMALL: dict[str, Any] = {"data_files_size_in_mb": 0.006, "video_files_size_in_mb": 0.005}


def frame(number: int) -> dict[str, Any]:
    """Make a frame that carries its number in each of its features."""
    return {
        TOP: picture(number),
        IMAGE: np.full((8, 8, 3), number, np.uint8),
        "action": np.full(3, number, np.float32),
        "matrix": np.full((2, 3), number, np.float32),
        "reward": float(number),
        "done": number % 2 == 0,
        "note": f"frame {number}",
    }


def frames_of(episode: int, lengths: list[int] = LENGTHS) -> list[dict[str, Any]]:
    first = sum(lengths[:episode])
    return [frame(first + place) for place in range(lengths[episode])]


def write(out: str | Path, lengths: list[int] = LENGTHS, **settings: Any) -> None:
    """Write a dataset of several files."""
    with LeRobotWriter(out, **{"fps": 10, "features": FEATURES, **SMALL, **settings}) as writer:
        for episode in range(len(lengths)):
            writer.write_episode(frames_of(episode, lengths), TASKS[episode % 2])


# Numbers of every type, with values that another type would change.
TYPES: dict[str, tuple[str, list[int]]] = {
    "half": ("float16", [2]),
    "double": ("float64", [2]),
    "matrix": ("float64", [2, 3]),
    "scalar": ("float64", [1]),
    "byte": ("uint8", [2]),
    "short": ("uint16", [1]),
    "int": ("int32", [2]),
    "grid": ("int32", [2, 2]),
    "done": ("bool", [1]),
}


def number_of_type(number: int, dtype: str, shape: list[int]) -> np.ndarray[Any, Any]:
    each = np.arange(np.prod(shape)).reshape(shape) + number
    if dtype == "bool":
        return np.asarray(each % 2 == 0)
    return np.asarray((each + 1) / 3 if dtype.startswith("float") else np.iinfo(dtype).max - each, dtype)


def write_types(root: Path) -> None:
    features = {key: {"dtype": dtype, "shape": shape} for key, (dtype, shape) in TYPES.items()}
    number = 0
    with LeRobotWriter(root, fps=10, features=features) as writer:
        for length in (4, 3):
            for _ in range(length):
                values = {key: number_of_type(number, *kind) for key, kind in TYPES.items()}
                writer.add_frame({**values, "done": bool(values["done"])}, task="count")
                number += 1
            writer.save_episode()
