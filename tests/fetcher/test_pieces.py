"""How many pieces are read at once."""

from __future__ import annotations

import math

from penstock.fetcher.pieces import HIGHEST, LOWEST, Concurrency, next_concurrency


def climb_on(peak: int, num_steps: int = 40) -> list[int]:
    now, limits = Concurrency(), []
    for _ in range(num_steps):
        rate = 100.0 * min(now.limit, peak) - (0 if now.limit <= peak else 20.0 * (now.limit - peak))
        now = next_concurrency(now, rate, is_full=True)
        limits.append(now.limit)
    return limits


def test_the_climb_finds_the_peak() -> None:
    for peak in (4, 8, HIGHEST):
        limits = climb_on(peak)
        assert all(LOWEST <= limit <= HIGHEST for limit in limits)
        around = sum(limits[10:]) / len(limits[10:])
        assert math.isclose(around, peak, rel_tol=0.5), (peak, limits)


def test_idle_times_say_nothing() -> None:
    now = Concurrency(limit=12, direction=1, rate=100.0)
    assert next_concurrency(now, 1.0, is_full=False) == now
    assert next_concurrency(now, 0.0, is_full=True) == now
