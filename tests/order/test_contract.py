from __future__ import annotations

import numpy as np

from penstock.order.native import StreamPlan
from penstock.order.options import OrderOptions, StreamShards
from penstock.testing import OrderContract


def plan_one(lengths: list[int], **options: object) -> StreamPlan:
    return StreamPlan.make(
        [StreamShards(name="one", lengths=np.array(lengths))],
        OrderOptions(**options),  # type: ignore[arg-type]
    )


class TestNative(OrderContract):
    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        return plan_one(lengths, seed=seed)


class TestNativeWithLanes(OrderContract):
    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        return plan_one(lengths, seed=seed, num_canonical_nodes=4, shuffle_block_size=64)


class TestNativeInOddLanes(OrderContract):
    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        return plan_one(lengths, seed=seed, num_canonical_nodes=3, shuffle_block_size=1)


class TestStratified(OrderContract):
    global_batch_size = 12

    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        return plan_one(
            lengths, seed=seed, num_canonical_nodes=4, batching_method="stratified", global_batch_size=12
        )
