"""Weights of a mix in the course of a run: given at some steps, interpolated between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, get_args

from penstock.errors import ConfigError
from penstock.order.quota import exact_shares
from penstock.units import check_whole

Interpolation = Literal["step", "linear", "cosine"]
ScheduleUnit = Literal["samples", "batches", "tokens"]

_MOST_BLOCKS = 1 << 16
_FINEST = 10**9  # interpolated weights are multiples of this part of 1, the same on every platform


@dataclass(frozen=True, slots=True)
class WeightSchedulePoint:
    """The weights of all sources from a step on. They need not add up to 1."""

    step: int
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        check_whole("step", self.step, 0)
        exact_shares(list(self.weights.values()))


class WeightScheduler:
    """Weights that change during a run.

    Args:
        schedule: Points, in the order of their steps, all with the same names. Before the first and after the last,
            weights stay what they are there.
        interpolation: What happens between two points: `"step"` keeps the earlier weights, `"linear"` and `"cosine"`
            change gradually to the later ones.
        unit: What steps count: samples of the mix, batches, or tokens.
        batch_size: Samples of a batch over all ranks, if steps count batches.
    """

    def __init__(
        self,
        schedule: Sequence[WeightSchedulePoint | Mapping[str, Any]],
        interpolation: Interpolation = "step",
        unit: ScheduleUnit = "samples",
        batch_size: int | None = None,
    ) -> None:
        try:
            points = [WeightSchedulePoint(**each) if isinstance(each, Mapping) else each for each in schedule]
        except TypeError as error:
            raise ConfigError(f"a point of a schedule needs a step and weights: {error}") from error
        if not points or any(low.step >= high.step for low, high in pairwise(points)):
            raise ConfigError(
                f"the steps of a schedule must grow from point to point, got {[point.step for point in points]}"
            )
        if any(set(point.weights) != set(points[0].weights) for point in points):
            raise ConfigError("all points of a schedule must have weights for the same names")
        if interpolation not in get_args(Interpolation):
            raise ConfigError(f"interpolation={interpolation!r} is unknown: use 'step', 'linear' or 'cosine'")
        if unit not in get_args(ScheduleUnit):
            raise ConfigError(f"unit={unit!r} is unknown: use 'samples', 'batches' or 'tokens'")
        if (unit == "batches") != (batch_size is not None):
            raise ConfigError(
                "batch_size= is the number of samples in a batch: pass it if unit is 'batches', and only then"
            )
        check_whole("batch_size", batch_size, 1)
        self.points, self.interpolation, self.unit = points, interpolation, unit
        self._samples_per_step = batch_size or 1

    @property
    def names(self) -> list[str]:
        """The names of the sources."""
        return list(self.points[0].weights)

    def get_weights(self, step: int) -> dict[str, float]:
        """Return the weights at a step, as shares of 1."""
        return dict(zip(self.names, map(float, self.shares(step, self.names)), strict=True))

    def shares(self, step: int, names: Sequence[str]) -> tuple[Fraction, ...]:
        """Return the exact shares at a step, in the order of some names."""
        later = next((number for number, point in enumerate(self.points) if point.step > step), len(self.points))
        before = self.points[max(0, later - 1)]
        low = exact_shares([before.weights[name] for name in names])
        if self.interpolation == "step" or later in (0, len(self.points)):
            return low
        after = self.points[later]
        high = exact_shares([after.weights[name] for name in names])
        way = Fraction(step - before.step, after.step - before.step)
        if self.interpolation == "cosine":
            way = Fraction((1 - math.cos(math.pi * float(way))) / 2)
        rounded = [round((old + way * (new - old)) * _FINEST) for old, new in zip(low, high, strict=True)]
        rounded[rounded.index(max(rounded))] += _FINEST - sum(rounded)
        return tuple(Fraction(each, _FINEST) for each in rounded)

    def segments(self, names: Sequence[str], block_size: int) -> list[tuple[int, tuple[Fraction, ...]]]:
        """Return from which sample on which shares apply; between points they change every `block_size` samples."""
        if self.unit == "tokens":
            raise ConfigError(
                "the weights of a schedule in tokens depend on the samples themselves, not only on how many there are"
            )
        cuts = {0, *(point.step * self._samples_per_step for point in self.points)}
        if self.interpolation != "step":
            for low, high in pairwise(point.step * self._samples_per_step for point in self.points):
                if (high - low) // block_size > _MOST_BLOCKS:
                    raise ConfigError(f"block_size={block_size} cuts the schedule into too many blocks: raise it")
                cuts.update(range(low, high, block_size))
        return [(cut, self.shares(cut // self._samples_per_step, names)) for cut in sorted(cuts)]
