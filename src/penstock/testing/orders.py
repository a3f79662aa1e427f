"""The contract of orders: what every plan must do, whatever its order, as property tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.order.cursor import Cursor
from penstock.order.plan import worker_first
from penstock.order.world import Seat, World, seats

if TYPE_CHECKING:
    from penstock.order.plan import Plan
    from penstock.types import Int64Array

_LENGTHS = st.one_of(
    st.lists(st.integers(0, 60), min_size=1, max_size=30),
    st.builds(lambda length, number: [length] * number, st.integers(1, 40), st.integers(1, 40)),
    st.lists(st.sampled_from([0, 1, 2, 300]), min_size=1, max_size=12),
).filter(lambda lengths: sum(lengths) > 0)
_WORLDS = st.builds(
    World, num_nodes=st.integers(1, 5), ranks_per_node=st.integers(1, 4), workers_per_rank=st.integers(1, 3)
)
_SEEDS = st.integers(0, 2**32)
_law = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow]
)


class OrderContract:
    """Subclass this, say how to make a plan, and let pytest collect the laws.

    Plans are made with `epoch_end="pad"`, the default.
    """

    #: The only global batch size that plans answer for, if their batching fixes it.
    global_batch_size: int | None = None

    def make_plan(self, lengths: list[int], seed: int) -> Plan:
        """Plan a run over one stream with these shard lengths."""
        raise NotImplementedError

    @_law
    @given(lengths=_LENGTHS, seed=_SEEDS, epoch=st.integers(0, 3))
    def test_every_sample_comes_once_per_epoch(self, lengths: list[int], seed: int, epoch: int) -> None:
        """One process alone sees each sample exactly once."""
        plan = self.make_plan(lengths, seed)
        ids = self._read_epoch(plan, Cursor(epoch), World(), self._batch_size(7, World()))
        assert len(ids) == plan.epoch_size(epoch)
        assert len(np.unique(ids)) == len(ids)
        assert ids.min() >= 0
        assert ids.max() < sum(lengths)

    @_law
    @given(lengths=_LENGTHS, seed=_SEEDS, world=_WORLDS, per_rank=st.integers(1, 9))
    def test_all_seats_together_give_the_global_order(
        self, lengths: list[int], seed: int, world: World, per_rank: int
    ) -> None:
        """Whatever the world: the same global batches, all ranks equal, fewer repeats than ranks."""
        plan = self.make_plan(lengths, seed)
        size = self._batch_size(per_rank, world)
        alone = self._read_epoch(plan, Cursor(0), World(), size)
        together = self._read_epoch(plan, Cursor(0), world, size)
        assert (together[: len(alone)] == alone).all()
        assert len(together) - len(alone) < world.num_ranks
        by_rank = [self._read_rank(plan, Cursor(0), seat, size) for seat in seats(world)]
        assert len({len(ids) for ids in by_rank}) == 1
        assert sorted(np.concatenate(by_rank).tolist()) == sorted(together.tolist())

    @_law
    @given(lengths=_LENGTHS, seed=_SEEDS, worlds=st.tuples(_WORLDS, _WORLDS), cut=st.floats(0, 1), data=st.data())
    def test_cut_anywhere_and_go_on_equals_uncut(
        self, lengths: list[int], seed: int, worlds: tuple[World, World], cut: float, data: st.DataObject
    ) -> None:
        """A state taken after any step goes on with the very next sample, on any other world."""
        plan = self.make_plan(lengths, seed)
        first, second = worlds
        size = self._batch_size(data.draw(st.integers(1, 5)), first)
        steps = int(cut * plan.num_batches(Cursor(1), Seat(world=first), size))
        before = self._read_epoch(plan, Cursor(1), first, size, max_steps=steps)
        state = json.loads(json.dumps(plan.state_dict(Cursor(1, steps * size))))
        at = Cursor(state["epoch"], state["position"])
        after = self._read_epoch(plan, at, second, self._batch_size(3, second))
        uncut = self._read_epoch(plan, Cursor(1), World(), self._batch_size(3, World()))
        whole = np.concatenate([before[: at.position], after])
        assert (whole[: len(uncut)] == uncut).all()

    @_law
    @given(lengths=_LENGTHS, seed=_SEEDS, world=_WORLDS, per_rank=st.integers(1, 9))
    def test_workers_take_turns(self, lengths: list[int], seed: int, world: World, per_rank: int) -> None:
        """The workers of a rank together give the batches of the rank, in turn."""
        plan = self.make_plan(lengths, seed)
        size = self._batch_size(per_rank, world)
        seat = seats(world)[-1]
        steps = range(plan.num_batches(Cursor(0), seat, size))
        workers = [
            Seat(world=world, node=seat.node, local_rank=seat.local_rank, worker=worker)
            for worker in range(world.workers_per_rank)
        ]
        taken = sorted(
            worker.step_of(turn) for worker in workers for turn in range(len(steps)) if worker.step_of(turn) in steps
        )
        assert taken == list(steps)

    @_law
    @given(lengths=_LENGTHS, seed=_SEEDS, world=_WORLDS, num_steps=st.integers(1, 6))
    def test_upcoming_shards_are_those_of_the_batches(
        self, lengths: list[int], seed: int, world: World, num_steps: int
    ) -> None:
        """Prefetching a rank's shards covers what its batches need, and a node's covers its ranks."""
        plan = self.make_plan(lengths, seed)
        size = self._batch_size(4, world)
        starts = np.cumsum([0, *lengths])
        seat = seats(world)[-1]
        mine = plan.upcoming_shards(Cursor(0), 0, num_steps, seat, size, of="rank")
        ours = plan.upcoming_shards(Cursor(0), 0, num_steps, seat, size, of="node")
        ids = np.concatenate([plan.batch(Cursor(0), step, seat, size) for step in range(num_steps)])
        needed = np.searchsorted(starts, ids, side="right") - 1
        assert list(dict.fromkeys(needed.tolist())) == mine.tolist()
        assert set(mine.tolist()) <= set(ours.tolist())

    def test_epochs_and_seeds_differ(self) -> None:
        """No two epochs and no two seeds share an order; epoch 1 of seed 42 is not epoch 0 of seed 43."""
        plans = {seed: self.make_plan([50] * 40, seed) for seed in (42, 43)}
        size = self._batch_size(8, World())
        orders = {
            (seed, epoch): self._read_epoch(plan, Cursor(epoch), World(), size).tobytes()
            for seed, plan in plans.items()
            for epoch in (0, 1)
        }
        assert len(set(orders.values())) == len(orders)

    def _batch_size(self, per_rank: int, world: World) -> int:
        return self.global_batch_size or per_rank * world.num_ranks

    def _read_epoch(self, plan: Plan, at: Cursor, world: World, size: int, max_steps: int | None = None) -> Int64Array:
        steps = plan.num_batches(at, Seat(world=world), size)
        steps = steps if max_steps is None else min(steps, max_steps)
        batches = [plan.global_batch(at, step, world, size) for step in range(steps)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *batches])

    def _read_rank(self, plan: Plan, at: Cursor, seat: Seat, size: int) -> Int64Array:
        steps = range(plan.num_batches(at, seat, size))
        batches = [plan.batch(at, step, seat, size) for step in steps]
        together = plan.batches(at, steps[::2], seat, size)
        assert [ids.tolist() for ids in together] == [ids.tolist() for ids in batches[::2]]
        for turn, ids in enumerate(batches[seat.worker :: seat.world.workers_per_rank]):
            assert worker_first(plan, at, turn, seat, size).tolist() == ids[:1].tolist()
        return np.concatenate([np.zeros(0, dtype=np.int64), *batches])
