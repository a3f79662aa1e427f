"""One episode while it is written: its rows, its encoded videos, and statistics of its numbers and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.writing.files import EpisodeEncoder
from penstock.episodes.writing.schema import ADDED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from penstock.episodes.info import Feature
    from penstock.episodes.writing.files import VideoCoding

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_LEVELS = 256
_MOST_PIXELS = 128 * 128  # of a picture that count


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


def stats_of_numbers(values: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Describe a feature over the frames of an episode."""
    frames = np.stack([np.atleast_1d(value) for value in values]).astype(np.float64)
    found = {
        "min": frames.min(axis=0),
        "max": frames.max(axis=0),
        "mean": frames.mean(axis=0),
        "std": frames.std(axis=0),
        **dict(zip(QUANTILES, np.quantile(frames, list(QUANTILES.values()), axis=0), strict=True)),
    }
    return {**{name: array.tolist() for name, array in found.items()}, "count": [len(frames)]}


class PictureStats:
    """Counts how often each level occurs in each channel, from which all statistics follow."""

    def __init__(self, num_channels: int) -> None:
        self._counts = np.zeros((num_channels, _LEVELS), np.int64)
        self._num_frames = 0

    def add(self, pixels: npt.NDArray[np.uint8]) -> None:
        """Count a picture; of a large one, pixels of an even grid."""
        step = max(1, int(np.ceil(np.sqrt(pixels.shape[0] * pixels.shape[1] / _MOST_PIXELS))))
        for channel, counts in enumerate(self._counts):
            counts += np.bincount(pixels[::step, ::step, channel].ravel(), minlength=_LEVELS)
        self._num_frames += 1

    def result(self) -> dict[str, Any]:
        """Describe all pictures, on a scale from 0 to 1, each value in the shape (channels, 1, 1)."""
        levels = np.arange(_LEVELS) / (_LEVELS - 1)
        shares = self._counts / self._counts.sum(axis=1, keepdims=True)
        reached = np.cumsum(shares, axis=1)
        mean = shares @ levels
        found = {
            "min": levels[np.argmax(self._counts > 0, axis=1)],
            "max": levels[_LEVELS - 1 - np.argmax(self._counts[:, ::-1] > 0, axis=1)],
            "mean": mean,
            "std": np.sqrt(np.maximum(0, shares @ levels**2 - mean**2)),
        }
        for name, share in QUANTILES.items():
            found[name] = levels[np.argmax(reached >= share - 1e-12, axis=1)]
        shaped = {name: array.reshape(-1, 1, 1).tolist() for name, array in found.items()}
        return {**shaped, "count": [self._num_frames]}
