from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.order.base import orders
from penstock.order.keys import hash_key
from penstock.order.native import StreamPlan
from penstock.order.options import OrderOptions, StreamShards
from penstock.testing import OrderContract

if TYPE_CHECKING:
    from penstock.types import Int64Array


def plan_one(lengths: list[int], **options: object) -> StreamPlan:
    return StreamPlan.make(
        [StreamShards(name="one", lengths=np.array(lengths))],
        OrderOptions(**options),  # type: ignore[arg-type]
    )


class TestNative(OrderContract):
    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        return plan_one(lengths, seed=seed)


class Rotated:
    """An order of a plug-in: the stored one, turned by a draw."""

    def __init__(self, lengths: Int64Array, *, seed: int, stream: str, num_lanes: int, window: int) -> None:
        del stream, window
        self.num_samples, self.num_lanes, self._seed = int(lengths.sum()), num_lanes, seed

    def ids(self, epoch: int, pass_id: int, positions: range) -> Int64Array:
        turn = hash_key(self._seed, epoch, pass_id) % self.num_samples
        return (np.array(positions, dtype=np.int64) + turn) % self.num_samples


class TestPlugIn(OrderContract):
    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        if "rotated" not in orders:
            orders.register("rotated")(Rotated)
        return plan_one(lengths, seed=seed, order="rotated")


class TestNativeWithLanes(OrderContract):
    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        return plan_one(lengths, seed=seed, num_canonical_nodes=4, shuffle_block_size=64)


class TestNativeInOddLanes(OrderContract):
    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        return plan_one(lengths, seed=seed, num_canonical_nodes=3, shuffle_block_size=1)


class TestEpisodePool(OrderContract):
    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        return plan_one(lengths, seed=seed, order="episode_pool", num_canonical_nodes=1, shuffle_block_size=100)


class TestStretches(OrderContract):
    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        return plan_one(lengths, seed=seed, order="stretches", num_canonical_nodes=1, shuffle_block_size=100)


class TestStretchesInLanes(OrderContract):
    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        stretches = np.arange(0, sum(lengths), 7)
        options = OrderOptions(seed=seed, order="stretches", num_canonical_nodes=3, shuffle_block_size=400)
        return StreamPlan.make([StreamShards(name="0", lengths=np.array(lengths), stretches=stretches)], options)


class TestStratified(OrderContract):
    global_batch_size = 12

    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        return plan_one(lengths, seed=seed, num_canonical_nodes=4, batching_method="stratified", global_batch_size=12)


class TestMixOfTwo(OrderContract):
    """Two streams whose ids and shards follow each other are the same samples as one."""

    options: ClassVar[dict[str, Any]] = {"num_canonical_nodes": 3}

    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        middle = len(lengths) // 2
        streams = [
            StreamShards(name=name, lengths=np.array(part, dtype=np.int64))
            for name, part in (("first", lengths[:middle]), ("second", lengths[middle:]))
        ]
        return StreamPlan.make(streams, OrderOptions(seed=seed, **self.options))


class TestStratifiedMixOfTwo(TestMixOfTwo):
    global_batch_size = 12
    options: ClassVar[dict[str, Any]] = {
        "num_canonical_nodes": 6,
        "batching_method": "stratified",
        "global_batch_size": 12,
    }


class TestUnshuffledMixOfTwo(TestMixOfTwo):
    options: ClassVar[dict[str, Any]] = {"shuffle": False}

    def test_epochs_and_seeds_differ(self) -> None:
        plan = self.make_plan([50] * 40, 42)
        assert plan.order.ids(1, range(2000)).tolist() == list(range(2000))
