"""How well the orders of robot episodes mix: uniform over a pool, and the one that fits the video."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from benchmarks.line_plot import Line, draw

from penstock.order.pool import EpisodePool, KeyframeOrder

if TYPE_CHECKING:
    from penstock.order.base import Order
    from penstock.types import Int64Array

NUM_EPISODES, NUM_FRAMES, POOL, BATCH = 512, 300, 64, 64
LAGS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
COLORS = ("#888888", "#4c78a8", "#f58518", "#54a24b", "#d62728")


def orders() -> dict[str, Order]:
    """Return the orders that are compared, of episodes of one length."""
    lengths = np.full(NUM_EPISODES, NUM_FRAMES)
    made: dict[str, Order] = {
        "uniform": EpisodePool(lengths, seed=1, stream="", num_lanes=1, window=POOL),
    }
    for gop in (2, 30, 250):
        step = -(-32 // gop) * gop
        begins = [np.arange(0, NUM_FRAMES, step) + episode * NUM_FRAMES for episode in range(NUM_EPISODES)]
        made[f"gop, a keyframe every {gop} frames"] = KeyframeOrder(
            lengths, seed=1, stream="", num_lanes=8, window=POOL, stretches=np.concatenate(begins)
        )
    return made


def batch_means(ids: Int64Array) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the mean of each batch of a value that is drawn for each episode, and drifts in the course of it."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(NUM_EPISODES)[ids // NUM_FRAMES]
    drift = rng.standard_normal((NUM_EPISODES, 2))[ids // NUM_FRAMES]
    way = (ids % NUM_FRAMES) / NUM_FRAMES * 2 * np.pi
    values = values + drift[:, 0] * np.sin(way) + drift[:, 1] * np.cos(way)
    whole = len(values) // BATCH * BATCH
    means: np.ndarray[tuple[int], np.dtype[np.float64]] = values[:whole].reshape(-1, BATCH).mean(axis=1)
    means -= means.mean()
    return means


def autocorrelation(ids: Int64Array) -> dict[int, float]:
    """Return how much alike the means of batches are that lie so many batches apart."""
    means = batch_means(ids)
    variance = float((means**2).mean())
    return {lag: float((means[lag:] * means[:-lag]).mean()) / variance for lag in LAGS}


def quality(order: Order) -> dict[str, float]:
    """Measure one order."""
    ids = order.ids(0, 0, range(order.num_samples))
    places = np.empty_like(ids)
    places[ids] = np.arange(len(ids))
    neighbours = np.abs(np.diff(places.reshape(NUM_EPISODES, NUM_FRAMES), axis=1))
    batches = ids[: len(ids) // BATCH * BATCH].reshape(-1, BATCH) // NUM_FRAMES
    means = batch_means(ids)
    lags = autocorrelation(ids)
    return {
        "neighbours_apart_median": float(np.median(neighbours)),
        "neighbours_apart_5_percent": float(np.percentile(neighbours, 5)),
        "episodes_per_batch": float(np.mean([len(np.unique(batch)) for batch in batches])),
        "spread_of_batch_means": float(means.std()),
        **{f"autocorrelation_{lag}": value for lag, value in lags.items() if lag in (1, 8, 64)},
    }


def qualities() -> dict[str, dict[str, float]]:
    """Measure all orders."""
    return {name: quality(order) for name, order in orders().items()}


def plot_quality() -> str:
    """Draw how alike batches are that lie apart; values not above a thousandth are drawn there."""
    lines = []
    for (name, order), color in zip(orders().items(), COLORS, strict=False):
        ids = order.ids(0, 0, range(order.num_samples))
        points = [(float(lag), max(value, 1e-3)) for lag, value in autocorrelation(ids).items()]
        lines.append(Line(name, color, points))
    return draw(lines, "batches apart", "correlation of batch means")
