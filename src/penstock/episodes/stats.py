"""Statistics of a whole dataset from those of its episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def join_stats(episodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join min, max, mean, std and count of each feature; means count by the number of values behind them."""
    keys = dict.fromkeys(key for episode in episodes for key in episode)
    return {key: _join([episode[key] for episode in episodes if key in episode]) for key in keys}


def _join(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counts = np.array([np.ravel(part["count"])[0] for part in parts], np.float64)
    means, stds = (np.array([part[name] for part in parts], np.float64) for name in ("mean", "std"))
    weights = (counts / counts.sum()).reshape(-1, *[1] * (means.ndim - 1))
    mean = (weights * means).sum(axis=0)
    variance = (weights * (stds**2 + (means - mean) ** 2)).sum(axis=0)
    return {
        "min": np.min([part["min"] for part in parts], axis=0).tolist(),
        "max": np.max([part["max"] for part in parts], axis=0).tolist(),
        "mean": mean.tolist(),
        "std": np.sqrt(variance).tolist(),
        "count": [int(counts.sum())],
    }
