"""An iterator that a thread reads ahead of the training loop, for as long as that is faster than reading in the loop.

A thread helps if the loop leaves it time: while it computes elsewhere, or waits. A loop that only takes batches is
slowed down, for both share the interpreter, and memory that one thread takes and another gives back is slow to come by.
Nobody can tell beforehand, so it is tried out.
"""

from __future__ import annotations

import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from penstock.loaders.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

# What is measured at a time: blocks of several batches are read at once, so one batch says nothing.
_MEASURED_S = 0.2
_MEASURED_ITEMS = 8
# A loop that takes less of the time for itself has nothing to win by a thread.
_LEAST_SHARE = 0.1
_GAIN = 0.98
# How many measures pass until a thread that did not pay is tried again, at first and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 4, 64
# A thread that pays reads so many times what was measured, and so often, before the loop is measured without it again.
_STRETCH, _NUM_STRETCHES = 16, 8


def prefetch_adaptively(
    source: Callable[[], Iterator[T]],
    *,
    ahead: int,
    max_bytes: int = sys.maxsize,
    weigh: Callable[[T], int] = lambda _: 0,
    on_abandon: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[T]:
    """Yield the items of a source, read by whoever takes them, or by a thread (`in_thread`) where that is faster."""
    items = source()

    def by_thread(most: int) -> Iterator[T]:
        return in_thread(
            lambda: islice(items, most), ahead=ahead, max_bytes=max_bytes, weigh=weigh, on_abandon=on_abandon
        )

    pause, wait = _FIRST_PAUSE, 0
    while True:
        alone = _Measured(clock)
        for item in items:
            alone.hand_over()
            yield item
            alone.come_back()
            if alone.is_enough:
                break
        else:
            return
        wait -= 1
        if alone.share_of_loop < _LEAST_SHARE or wait > 0:
            continue
        for stretch in range(1 + _NUM_STRETCHES):
            most = alone.num_items * (_STRETCH if stretch else 1)
            together = _Measured(clock)
            for item in by_thread(most):
                together.hand_over()
                yield item
                together.come_back()
            if together.num_items < most:
                return
            if together.seconds_per_item > _GAIN * alone.seconds_per_item:
                pause, wait = min(2 * pause, _LONGEST_PAUSE), pause
                break
            pause = _FIRST_PAUSE


class _Measured:
    """How long items take, and how much of that is the loop's that takes them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = self._left = self._now = clock()
        self._away_s = 0.0
        self.num_items = 0

    def hand_over(self) -> None:
        self._left = self._clock()

    def come_back(self) -> None:
        self._now = self._clock()
        self._away_s += self._now - self._left
        self.num_items += 1

    @property
    def is_enough(self) -> bool:
        return self.num_items >= _MEASURED_ITEMS and self._now - self._begun >= _MEASURED_S

    @property
    def seconds_per_item(self) -> float:
        return (self._now - self._begun) / max(1, self.num_items)

    @property
    def share_of_loop(self) -> float:
        return self._away_s / max(1e-9, self._now - self._begun)
