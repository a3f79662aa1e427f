"""Where the whole training job stands, seen from one rank: its world, its plan, its passes and its state."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from penstock.data.passes import NO_WORKER, PassBook
from penstock.data.seat import find_seat, is_worker
from penstock.errors import ResumeError
from penstock.order.cursor import Cursor
from penstock.order.make_plan import MOSAIC, choose_order
from penstock.order.world import replicate

if TYPE_CHECKING:
    from penstock.data.passes import Notes, Pass
    from penstock.data.run import Runs
    from penstock.order.make_plan import RunSettings
    from penstock.order.plan import Plan
    from penstock.order.world import Seat

# Without a batch size, samples come one by one but are still read many at a time.
_READ_AT_ONCE = 256


class Job:
    """Answers for the dataset who this rank is, what it gets, and what a state says."""

    def __init__(
        self,
        runs: Runs,
        settings: RunSettings,
        *,
        rank: int | None,
        world_size: int | None,
        num_nodes: int | None,
        replication: int | None,
        batch_size: int | None,
    ) -> None:
        self.batch_size = batch_size
        self.book = PassBook()
        self._runs, self._settings = runs, settings
        self._rank, self._world_size, self._num_nodes = rank, world_size, num_nodes
        self._replication = replication
        self._carried_seat: Seat | None = None
        self._carried_to = 0

    # --- Who and how many -------------------------------------------------------------------------------------

    def seat(self) -> Seat:
        """Find this rank in its job, as it is now; a worker that was spawned is told by its parent."""
        if is_worker() and self._carried_seat is not None and self._carried_to == os.getpid():
            return self._carried_seat
        seat = find_seat(rank=self._rank, world_size=self._world_size, num_nodes=self._num_nodes)
        return seat if self._replication is None else replicate(seat, self._replication)

    @property
    def read_batch_size(self) -> int:
        """The samples of a rank that are dealt as one batch; without a batch size, as many as are read at once."""
        if self.batch_size is not None:
            return self.batch_size
        return 1 if choose_order(self._settings, self.book.read().state) == MOSAIC else _READ_AT_ONCE

    def global_batch_size(self, seat: Seat) -> int:
        """Count the samples of all ranks that are dealt as one batch."""
        return self.read_batch_size * seat.world.num_ranks

    def plan(self, seat: Seat) -> Plan:
        """Give the plan of the pass that began last, or of the next one if none has begun."""
        return self._runs.get(seat, self.global_batch_size(seat), self.book.read().state).plan

    def num_samples(self, epoch_size: int) -> int:
        """Count the samples that this rank gets in an epoch."""
        seat = self.seat()
        if self._settings.epoch_end == "pad":
            return -(-epoch_size // seat.world.num_ranks)
        plan, size, at = self.plan(seat), self.global_batch_size(seat), Cursor()
        num_batches = plan.num_batches(at, seat, size)
        last = len(plan.batch(at, num_batches - 1, seat, size)) if num_batches else 0
        return max(0, num_batches - 1) * self.read_batch_size + last

    def num_batches(self, epoch: int, *, drop_last: bool) -> int:
        """Count the batches that this rank gets in an epoch."""
        seat = self.seat()
        plan, size, at = self.plan(seat), self.global_batch_size(seat), Cursor(epoch, 0)
        num_batches = plan.num_batches(at, seat, size)
        if drop_last and num_batches:
            num_batches -= len(plan.batch(at, num_batches - 1, seat, size)) < self.read_batch_size
        return num_batches

    # --- Where it stands --------------------------------------------------------------------------------------

    def start_of(self, notes: Notes) -> Cursor:
        """Say where the next pass begins."""
        seat = self.seat()
        size = self.global_batch_size(seat)
        run = self._runs.get(seat, size, notes.state)
        return run.start_of(notes.next_epoch, seat.world, size, is_state_new=notes.is_state_new)

    def state(self, num_samples: int | None, yielded: int | None, *, from_beginning: bool) -> dict[str, Any]:
        """Describe where the job stands, by what was delivered to all ranks or, failing that, by what this one yielded.

        `num_samples` counts from the beginning of the epoch, or of the pass.
        """
        notes, seat = self.book.read(), self.seat()
        if notes.is_between_passes:
            at = self.start_of(notes)
            return self._runs.get(seat, self.global_batch_size(seat), notes.state).plan.state_dict(at)
        begun = notes.passes[-1]
        if begun.workers != [NO_WORKER] and self.batch_size is None:
            raise ResumeError(
                "this dataset was iterated by workers without knowing their batch size, so no state would be right:"
                " pass batch_size= to it, or use penstock's StreamingDataLoader"
            )
        if num_samples is not None:
            position = num_samples if from_beginning else begun.position + num_samples
        elif yielded is not None and begun.workers == [NO_WORKER]:
            position = begun.position + yielded * seat.world.num_ranks
        else:
            raise ResumeError(
                "the workers of a loader read ahead of what it delivered: pass num_samples=, counted over all ranks, or"
                " take the state of penstock's StreamingDataLoader"
            )
        return self.plan(seat).state_dict(Cursor(begun.epoch, position))

    def state_after(self, begun: Pass, num_steps: int, *, is_over: bool) -> dict[str, Any]:
        """Describe where the job stands after so many global batches of a pass, or at its end."""
        seat = self.seat()
        plan, size = self.plan(seat), self.global_batch_size(seat)
        epoch_size = plan.epoch_size(begun.epoch)
        position = begun.position + num_steps * size
        if num_steps and position > epoch_size:  # the last batch may be a short one
            last = plan.global_batch(begun.at, num_steps - 1, seat.world, size)
            position += len(last) - size
        return plan.state_dict(Cursor(begun.epoch, max(position, epoch_size) if is_over else position))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_carried_seat": self.seat()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # What the parent knew holds for the worker that it started, not for those that this process forks.
        self._carried_to = os.getpid()
