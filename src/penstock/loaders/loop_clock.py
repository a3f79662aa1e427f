"""How long a training loop waits for its batches, and how long it works on them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.data.stats import LoopStats
from penstock.interrupts import WaitingFor, cut_short

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from penstock.loaders.waiting import WaitingWatch

T = TypeVar("T")

_END = object()


class LoopClock:
    """Counts and times the batches that a loop takes from a loader of any kind, in all passes together."""

    def __init__(self) -> None:
        self.watch: WaitingWatch | None = None  # looks at the loop every now and then
        self._num_batches = 0
        self._starting_s = self._waiting_s = self._training_s = 0.0

    def time(self, batches: Iterator[T]) -> Generator[T]:
        """Yield the batches of a pass; an interrupt that comes while one is waited for says so."""
        gave: float | None = None
        while True:
            asked = time.perf_counter()
            if gave is not None:
                self._training_s += asked - gave
            try:
                with WaitingFor("the next batch"):
                    batch: Any = next(batches, _END)
            except KeyboardInterrupt as interrupt:
                raise cut_short(interrupt) from None
            got = time.perf_counter()
            if gave is None:
                self._starting_s += got - asked
            else:
                self._waiting_s += got - asked
            if batch is _END:
                return
            self._num_batches += 1
            if self.watch is not None and self.watch.is_due(self._waiting_s + self._training_s):
                self.watch.look(self.stats())
            gave = time.perf_counter()
            yield batch

    def stats(self) -> LoopStats:
        """Count the batches delivered, the seconds that the training loop waited for them, and the others."""
        passed_s = self._waiting_s + self._training_s
        return LoopStats(
            batches=self._num_batches,
            seconds_starting=self._starting_s,
            seconds_waiting=self._waiting_s,
            seconds_training=self._training_s,
            waiting_share=self._waiting_s / passed_s if passed_s else None,
        )
