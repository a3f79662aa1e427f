"""Proportions that change in the course of a run: given at some positions, interpolated between them."""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import ConfigError
from penstock.units import check_whole, checks_making

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_SEGMENTS = 4096


@checks_making
@dataclass(frozen=True, slots=True, kw_only=True)
class MixSchedule:
    """Proportions of all streams at given positions of the run, counted in samples since the first epoch began.

    Pass it to a dataset as `schedule=`, or pass plain values instead: a dict of these fields, or, for steps, a list of
    pairs `(position, proportions)`.

    Args:
        positions: Where proportions are given, in samples of the whole job; the first is 0.
        proportions: For each position, one number per stream. They need not add up to 1.
        shape: What happens between two positions: `step` keeps the earlier proportions, `linear` and `cosine` change
            gradually to the later ones.
        block: Proportions are constant within blocks of so many samples; by default a 64th of the way between the two
            positions.
    """

    positions: Sequence[int]
    proportions: Sequence[Sequence[float]]
    shape: Literal["step", "linear", "cosine"] = "step"
    block: int | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "positions", tuple(operator.index(position) for position in self.positions))
            proportions = tuple(tuple(map(_plain, each)) for each in self.proportions)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                "a schedule needs a list of whole numbers, such as positions=[0, 1000], and a list of as many"
                f" lists of numbers, such as proportions=[[1, 0], [0.5, 0.5]]: {error}"
            ) from error
        object.__setattr__(self, "proportions", proportions)
        if not self.positions or self.positions[0] != 0 or list(self.positions) != sorted(set(self.positions)):
            raise ConfigError(f"schedule positions {self.positions} must start with 0 and increase")
        if len(self.positions) != len(self.proportions):
            raise ConfigError(
                f"the schedule has {len(self.positions)} positions but {len(self.proportions)} lists of"
                " proportions: give one list for each position"
            )
        for shares in self.proportions:
            if (
                len(shares) != len(self.proportions[0])
                or not all(0 <= share < math.inf for share in shares)
                or not sum(shares)
            ):
                raise ConfigError(f"proportions {shares} must have one number per stream, none negative and not all 0")
        if self.shape not in ("step", "linear", "cosine"):
            raise ConfigError(f"unknown schedule shape {self.shape!r}: use step, linear or cosine")
        check_whole("block", self.block, 1)

    @classmethod
    def of(cls, given: MixSchedule | Mapping[str, Any] | Sequence[tuple[int, Sequence[float]]]) -> MixSchedule:
        """Make a schedule of plain values: a dict of its fields, or pairs of a position and its proportions."""
        if isinstance(given, MixSchedule):
            return given
        try:
            if isinstance(given, Mapping):
                return cls(**given)
            pairs = [(position, shares) for position, shares in given]
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"schedule={given!r:.200} is not a schedule ({error}): pass a MixSchedule, a dict with its fields,"
                " or a list of pairs (position, proportions)"
            ) from error
        return cls(positions=[position for position, _ in pairs], proportions=[shares for _, shares in pairs])

    def describe(self) -> dict[str, Any]:
        """Describe the schedule in plain JSON values, as `read` reads them."""
        return {
            "positions": list(self.positions),
            "proportions": [list(shares) for shares in self.proportions],
            "shape": self.shape,
            "block": self.block,
        }

    @classmethod
    def read(cls, described: dict[str, Any]) -> MixSchedule:
        """Make the schedule that `describe` described."""
        return cls(
            positions=described["positions"],
            proportions=described["proportions"],
            shape=described["shape"],
            block=described["block"],
        )

    def segments(self, begin: int, end: int) -> list[tuple[int, tuple[int, ...]]]:
        """Cut [begin, end) where proportions change: the start of each segment, and exact counts of streams.

        Fractions are carried from segment to segment, so that counts stay within one sample of the integral.
        """
        cuts = self._cuts(begin, end)
        owed = [Fraction(0)] * len(self.proportions[0])
        segments = []
        for start, stop in zip(cuts, [*cuts[1:], end], strict=True):
            shares = self._shares((start + stop) // 2 if self.shape != "step" else start)
            owed = [due + (stop - start) * share for due, share in zip(owed, shares, strict=True)]
            counts = _round_down(owed, stop - start)
            owed = [due - count for due, count in zip(owed, counts, strict=True)]
            segments.append((start, tuple(counts)))
        return segments

    def _cuts(self, begin: int, end: int) -> list[int]:
        cuts = {begin, *(position for position in self.positions if begin < position < end)}
        if self.shape != "step":
            for low, high in pairwise(self.positions):
                block = self.block or max(1, (high - low) // 64)
                first = max(low, begin) - (max(low, begin) - low) % block
                if (min(high, end) - first) // block > _MAX_SEGMENTS:
                    raise ConfigError(
                        f"a schedule block of {block} samples makes more than {_MAX_SEGMENTS} segments: use a"
                        " larger block"
                    )
                cuts.update(cut for cut in range(first, min(high, end), block) if cut > begin)
        return sorted(cuts)

    def _shares(self, position: int) -> list[Fraction]:
        number = bisect_right(self.positions, position) - 1
        before = _normalise(self.proportions[number])
        if self.shape == "step" or number + 1 == len(self.positions):
            return before
        low, high = self.positions[number], self.positions[number + 1]
        way = Fraction(position - low, high - low)
        if self.shape == "cosine":
            # Rounded, so that the last digit of a platform's cosine cannot change a count.
            way = Fraction(round((1 - math.cos(math.pi * float(way))) / 2, 9))
        after = _normalise(self.proportions[number + 1])
        return [(1 - way) * old + way * new for old, new in zip(before, after, strict=True)]


def _plain(share: Any) -> float:
    """Return a number as Python's own: a plan is named after how they are written."""
    return operator.index(share) if hasattr(share, "__index__") else float(share)


def _normalise(shares: Sequence[float]) -> list[Fraction]:
    exact = [Fraction(share) for share in shares]
    return [share / sum(exact) for share in exact]


def _round_down(owed: Sequence[Fraction], total: int) -> list[int]:
    """Pay debts in whole samples, `total` in all: the whole part of each, then the largest fractions."""
    counts = [max(0, math.floor(due)) for due in owed]
    by_fraction = sorted(range(len(owed)), key=lambda number: (counts[number] - owed[number], number))
    for number in by_fraction[: max(0, total - sum(counts))]:
        counts[number] += 1
    # A stream paid ahead earlier leaves others with more than the total: take back where least is owed.
    for number in reversed(by_fraction):
        excess = max(0, sum(counts) - total)
        counts[number] -= min(excess, counts[number])
    return counts
