"""The questions that everyone above asks of an order: which samples, for whom, at which step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from penstock.order.cursor import Cursor
    from penstock.order.world import Seat, World
    from penstock.types import Int64Array

EpochEnd: TypeAlias = Literal["pad", "drop", "trim", "uneven"]
BatchingMethod: TypeAlias = Literal["random", "stratified", "per_stream", "device_per_stream"]
BATCHING_METHODS: tuple[BatchingMethod, ...] = ("random", "stratified", "per_stream", "device_per_stream")


class Plan(Protocol):
    """Answers, for any world, which samples make up each batch of a pass that begins at a cursor.

    A pass is what is left of the epoch `at.epoch` from `at.position` on. Its steps count from 0 at that
    cursor, and step s of the whole job is one global batch. `global_batch_size` counts samples over all
    ranks. Every method is a pure function of its arguments; what it keeps between calls only makes the next
    call faster.
    """

    @property
    def fingerprint(self) -> str:
        """Name the dataset and the order: a state with another fingerprint belongs to another run."""

    def epoch_size(self, epoch: int) -> int:
        """Count the samples of an epoch, without the repeats that make ranks equal."""

    def num_batches(self, at: Cursor, seat: Seat, global_batch_size: int) -> int:
        """Count the steps that this rank takes from the cursor to the end of the epoch."""

    def global_batch(self, at: Cursor, step: int, world: World, global_batch_size: int) -> Int64Array:
        """Return the ids of one global batch in global order, declared repeats included; empty past the end."""

    def batch(self, at: Cursor, step: int, seat: Seat, global_batch_size: int) -> Int64Array:
        """Return the ids of one rank's share of a global batch; empty past the end of the epoch."""

    def batches(self, at: Cursor, steps: range, seat: Seat, global_batch_size: int) -> list[Int64Array]:
        """Return the same for several steps at once, which costs little more than one of them."""

    def upcoming_shards(
        self, at: Cursor, step: int, num_steps: int, seat: Seat, global_batch_size: int, *, of: Literal["rank", "node"]
    ) -> Int64Array:
        """List the shards that the rank or its node touches in the next steps, in order of first use."""

    def expected_shards(
        self, at: Cursor, step: int, num_steps: int, seat: Seat, global_batch_size: int
    ) -> tuple[Int64Array, Int64Array]:
        """Guess the same for the rank, fast and far ahead: the shards, and in how many steps each is first used.

        It may name a shard too many, or a step too early or too late; nothing but waiting time depends on it.
        """

    def state_dict(self, at: Cursor) -> dict[str, Any]:
        """Describe the cursor and all that a plan must adopt to go on from it, as plain JSON values."""


def worker_batches(plan: Plan, at: Cursor, turns: range, seat: Seat, global_batch_size: int) -> list[Int64Array]:
    """Return the ids of some of a worker's batches, by their numbers: the workers of a rank take its steps in turn."""
    steps = range(seat.step_of(turns.start), seat.step_of(turns.stop), seat.world.workers_per_rank)
    return plan.batches(at, steps, seat, global_batch_size)


@runtime_checkable
class FindsFirst(Protocol):
    """A plan that finds the first sample of a batch without the others, of which each may need a window of its own."""

    def first_of_batch(self, at: Cursor, step: int, seat: Seat, global_batch_size: int) -> Int64Array:
        """Return the first id of one rank's share of a global batch; empty past the end of the epoch."""


def worker_first(plan: Plan, at: Cursor, turn: int, seat: Seat, global_batch_size: int) -> Int64Array:
    """Return the first id of one of a worker's batches, if there is one."""
    step = seat.step_of(turn)
    if isinstance(plan, FindsFirst):
        return plan.first_of_batch(at, step, seat, global_batch_size)
    return plan.batch(at, step, seat, global_batch_size)[:1]


@runtime_checkable
class FindsPositions(Protocol):
    """A plan whose ranks get other positions of a global batch than every so-and-so-many-th."""

    def positions_of_batch(self, at: Cursor, step: int, seat: Seat, global_batch_size: int) -> Int64Array:
        """Return the positions of one rank's share of a global batch in the epoch."""


def batch_positions(
    plan: Plan, at: Cursor, step: int, seat: Seat, global_batch_size: int, num_samples: int
) -> Int64Array:
    """Return the positions of so many samples, which are one rank's share of a global batch, in the epoch."""
    if isinstance(plan, FindsPositions):
        return plan.positions_of_batch(at, step, seat, global_batch_size)
    begin, num_ranks = at.position + step * global_batch_size, seat.world.num_ranks
    return begin + (seat.residue - begin) % num_ranks + num_ranks * np.arange(num_samples)


def first_uses(shards: Int64Array, steps: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Of shards used at steps, the later the farther down the list, keep the first use of each."""
    # By hand: the first call of `np.unique` loads all of NumPy's masked arrays, while a user waits for a first batch.
    order = np.argsort(shards, kind="stable")
    ranked = shards[order]
    is_first = np.ones(len(shards), bool)
    is_first[1:] = ranked[1:] != ranked[:-1]
    at = np.sort(order[is_first])
    return shards[at], steps[at]
