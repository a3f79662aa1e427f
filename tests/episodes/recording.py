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
