"""Statistics of a whole dataset from those of its episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt


def join_stats(episodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join min, max, mean, std and count of each feature; means count by the number of values behind them.

    Quantiles, if all parts have them, are joined like means: a whole dataset has no others.
    """
    keys = dict.fromkeys(key for episode in episodes for key in episode)
    return {key: _join([episode[key] for episode in episodes if key in episode]) for key in keys}


def _join(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counts = np.array([np.ravel(part["count"])[0] for part in parts], np.float64)
    means, stds = _stacked(parts, "mean"), _stacked(parts, "std")
    weights = (counts / counts.sum()).reshape(-1, *[1] * (means.ndim - 1))
    mean = (weights * means).sum(axis=0)
    quantiles = [name for name in parts[0] if name.startswith("q") and all(name in part for part in parts)]
    variance = (weights * (stds**2 + (means - mean) ** 2)).sum(axis=0)
    return {
        "min": np.min([part["min"] for part in parts], axis=0).tolist(),
        "max": np.max([part["max"] for part in parts], axis=0).tolist(),
        "mean": mean.tolist(),
        "std": np.sqrt(variance).tolist(),
        "count": [int(counts.sum())],
        **{
            name: (weights * np.array([part[name] for part in parts], np.float64)).sum(axis=0).tolist()
            for name in quantiles
        },
    }


def _stacked(parts: Sequence[Mapping[str, Any]], name: str) -> npt.NDArray[np.float64]:
    return np.array([part[name] for part in parts], np.float64)
