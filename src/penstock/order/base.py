"""What an order is, and the names under which orders are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from penstock.registry import Registry

if TYPE_CHECKING:
    from penstock.types import Int64Array


class Order(Protocol):
    """A bijection between the positions of an epoch and the samples, laid out in lanes.

    Position p is place `p // num_lanes` of lane `p % num_lanes`. A reader of some lanes touches only the shards
    of those lanes.
    """

    @property
    def num_samples(self) -> int:
        """Count the samples of one pass."""

    @property
    def num_lanes(self) -> int:
        """Count the lanes."""

    def ids(self, epoch: int, pass_id: int, positions: range) -> Int64Array:
        """Return the ids at evenly spaced positions of one pass over the samples in an epoch."""


@runtime_checkable
class LooksAhead(Protocol):
    """An order that knows its shards without computing ids. Others are asked for ids, at a cost per sample."""

    def shards(self, epoch: int, pass_id: int, positions: range) -> tuple[Int64Array, Int64Array]:
        """Return the shards that such positions need and about where each is first needed, soonest first."""


class OrderFactory(Protocol):
    """Makes an order from shard lengths and the settings that a state carries."""

    def __call__(self, lengths: Int64Array, *, seed: int, stream: str, num_lanes: int, window: int) -> Order:
        """Make the order of one stream."""


STRETCHES = "stretches"  # its factory also takes where stretches begin

orders: Registry[OrderFactory] = Registry(
    "order",
    group="penstock.orders",
    builtin={
        "native": "penstock.order.conveyor:Conveyor",
        "sequential": "penstock.order.sequential:Sequential",
        "episode_pool": "penstock.order.pool:EpisodePool",
        STRETCHES: "penstock.order.pool:KeyframeOrder",
    },
)
