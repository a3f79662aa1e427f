from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.order.base import orders
from penstock.order.keys import fold
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
        turn = fold(self._seed, epoch, pass_id) % self.num_samples
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


class TestStratified(OrderContract):
    global_batch_size = 12

    def make_plan(self, lengths: list[int], seed: int) -> StreamPlan:
        return plan_one(
            lengths, seed=seed, num_canonical_nodes=4, batching_method="stratified", global_batch_size=12
        )
