"""One episode while it is written: its rows, its encoded videos, and what is counted of its pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.writing.schema import ADDED
from penstock.episodes.writing.statistics import PictureStats, stats_of_numbers
from penstock.episodes.writing.videos import EpisodeEncoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.episodes.info import Feature
    from penstock.episodes.writing.videos import VideoCoding


class EpisodeInProgress:
    """Takes the frames of an episode one after the other."""

    def __init__(self, features: Mapping[str, Feature], coding: VideoCoding) -> None:
        self.features = features
        self.columns: dict[str, list[Any]] = {key: [] for key, each in features.items() if not each.is_video}
        self.encoders = {key: EpisodeEncoder(coding, each) for key, each in features.items() if each.is_video}
        self._pictures = {key: PictureStats(each.shape[-1]) for key, each in features.items() if each.is_camera}
        self._tasks: list[str] = []

    def add(self, frame: Mapping[str, Any], task: str) -> None:
        """Add a frame that was checked."""
        for key, feature in self.features.items():
            value = frame[key]
            if feature.is_camera:
                self._pictures[key].add(value.pixels)
            if feature.is_video:
                self.encoders[key].add(value.pixels)
            else:
                self.columns[key].append(value.as_file() if feature.is_image else value)
        self._tasks.append(task)

    @property
    def num_frames(self) -> int:
        """How many frames it has so far."""
        return len(self._tasks)

    @property
    def tasks(self) -> list[str]:
        """Its tasks, each once."""
        return list(dict.fromkeys(self._tasks))

    def added(self, fps: float, episode: int, first_index: int, tasks: Mapping[str, int]) -> dict[str, list[Any]]:
        """Return the columns that every dataset has."""
        numbers = np.arange(self.num_frames)
        columns = {
            "timestamp": numbers / fps,
            "frame_index": numbers,
            "episode_index": np.full_like(numbers, episode),
            "index": numbers + first_index,
            "task_index": np.array([tasks[task] for task in self._tasks]),
        }
        return {key: list(column.astype(ADDED[key].dtype)) for key, column in columns.items()}

    def stats(self, columns: Mapping[str, list[Any]]) -> dict[str, Any]:
        """Describe all features that are numbers or pictures."""
        found: dict[str, Any] = {}
        for key, feature in {**self.features, **ADDED}.items():
            if feature.is_camera:
                found[key] = self._pictures[key].result()
            elif feature.dtype != "string":
                found[key] = stats_of_numbers(columns[key])
        return found
