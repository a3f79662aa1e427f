"""Statistics of the frames of an episode: of numbers when it ends, of pictures as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_LEVELS = 256
_MOST_PIXELS = 128 * 128  # of a picture that count


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
