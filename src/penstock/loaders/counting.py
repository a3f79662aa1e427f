"""Which batches were delivered to the training loop, how long it waited for them, and the state that follows."""

from __future__ import annotations

import atexit
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.counters import LoopStats
from penstock.interrupts import WaitingFor, cut_short
from penstock.user_warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from penstock.data.passes import Pass
    from penstock.data.run_state import RunState
    from penstock.loaders.waiting import WaitingWatch

T = TypeVar("T")

_END = object()
_open: weakref.WeakSet[Generator[Any]] = weakref.WeakSet()  # passes that may be under way


@atexit.register
def _close_all() -> None:
    """Close passes that were left open, while all that they close is still there."""
    for batches in list(_open):
        with suppress(ValueError):  # a thread is in it
            batches.close()


class _RunningDataset(Protocol):
    """What is asked of a dataset here; a state may have it opened again, so its run is looked up each time."""

    run: RunState

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, obj: Mapping[str, Any]) -> None: ...


class DeliveredBatches:
    """Counts what a loader gives out, whatever its workers or threads have read ahead. For any kind of loader."""

    def __init__(self, dataset: _RunningDataset, *, drops_last: bool) -> None:
        self._dataset, self._drops_last = dataset, drops_last
        self._begun: Pass | None = None
        self._num_steps = 0
        self._is_over = False

    def count(self, begun: Pass, batches: Iterator[T]) -> Iterator[T]:
        """Return the batches of a pass that begins now, each counted as it is taken."""
        self.follow(begun)
        return self._count(begun, batches)

    def _count(self, begun: Pass, batches: Iterator[T]) -> Iterator[T]:
        for batch in batches:
            self.add(begun)
            yield batch
        self.end(begun)

    def follow(self, begun: Pass) -> None:
        """Count the batches of a pass from now on."""
        self._begun, self._num_steps, self._is_over = begun, 0, False

    def add(self, begun: Pass) -> None:
        """Count a batch of a pass; one that was left for another no longer counts."""
        self._num_steps += self._begun is begun

    def end(self, begun: Pass) -> None:
        """Note that a pass has no batch left."""
        self._is_over = self._is_over or self._begun is begun

    def num_batches(self) -> int:
        """Count the batches of the pass that is under way or comes next, from where it begins."""
        run = self._dataset.run
        begun = None if self._is_over or run.passes.read().is_between_passes else self._begun
        return run.num_batches(None if begun is None else begun.at, drop_last=self._drops_last)

    def num_samples(self) -> int:
        """Count the samples of the batches that were delivered in this pass."""
        return 0 if self._begun is None else self._dataset.run.now().num_samples(self._begun.at, self._num_steps)

    def state_dict(self) -> dict[str, Any]:
        """Describe where the whole job stands after the batch delivered last, as plain JSON values."""
        run = self._dataset.run
        if self._begun is None or run.passes.read().is_between_passes:
            return self._dataset.state_dict()
        return run.state_after(self._begun, self._num_steps, is_over=self._is_over and self._drops_last)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state with the next pass: what was delivered before no longer counts."""
        self._dataset.load_state_dict(state)
        self._begun = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._dataset.set_epoch(epoch)


def warn_of_no_batch(batch_size: int | None, num_samples: int) -> None:
    """Warn that a pass has no batch, because its only one is not full."""
    warn_user(
        f"the loader gives no batch: this rank gets {num_samples} samples, and drop_last=True leaves out a batch of"
        f" fewer than batch_size={batch_size}. Lower batch_size, or pass drop_last=False"
    )


class LoopClock:
    """Counts and times the batches that a loop takes from a loader of any kind, in all passes together."""

    def __init__(self) -> None:
        self.watch: WaitingWatch | None = None  # looks at the loop every now and then
        self._num_batches = 0
        self._starting_s = self._waiting_s = self._training_s = 0.0

    def time(self, batches: Iterator[T]) -> Generator[T]:
        """Return the batches of a pass; an interrupt that comes while one is waited for says so."""
        timed = self._time(batches)
        _open.add(timed)
        return timed

    def _time(self, batches: Iterator[T]) -> Generator[T]:
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
