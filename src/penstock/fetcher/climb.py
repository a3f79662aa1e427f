"""How many pieces to read at once: uphill while it gets faster, back when it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

LOWEST = 4
HIGHEST = 32
_BETTER = 1.05
_WORSE = 0.95


@dataclass(frozen=True, slots=True)
class Climb:
    """Where the search stands: the limit in force, the direction it moved last, the rate before that move."""

    limit: int = 16
    direction: int = 1
    rate: float = 0.0


def next_climb(climb: Climb, rate: float, *, is_full: bool) -> Climb:
    """Move on by what the last stretch measured, in bytes per second.

    A stretch that did not use the limit (`is_full` is false) says nothing about it. A move that brought nothing is
    taken back: more readers than needed cost memory and the store's patience.
    """
    if not is_full or rate <= 0:
        return climb
    if climb.rate == 0 or rate > climb.rate * _BETTER:
        return _step(replace(climb, rate=rate))
    if rate < climb.rate * _WORSE or climb.direction > 0:
        return _step(replace(climb, rate=rate, direction=-climb.direction))
    return _step(replace(climb, rate=rate))


def _step(climb: Climb) -> Climb:
    change = max(1, climb.limit // 4)
    limit = min(HIGHEST, max(LOWEST, climb.limit + climb.direction * change))
    if limit == climb.limit:  # at the edge: look the other way next time
        return replace(climb, direction=-climb.direction)
    return replace(climb, limit=limit)
