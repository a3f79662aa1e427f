"""MosaicML Streaming's `World`, from our seats and worlds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.data.seat import find_seat, worker_of
from penstock.order.world import Seat
from penstock.order.world import World as Nodes
from penstock.order.world import replicate as replicate_seat


class World:
    """Who a process is: its node, rank and worker, of how many. Without arguments, this one as it is now."""

    def __init__(
        self, num_nodes: int | None = None, ranks_per_node: int = 1, workers_per_rank: int = 1, worker: int = 0
    ) -> None:
        if num_nodes is None:
            self._seat = _with_workers(find_seat())
        else:
            world = Nodes(num_nodes=num_nodes, ranks_per_node=ranks_per_node, workers_per_rank=workers_per_rank)
            rank, worker_of_rank = divmod(worker, workers_per_rank)
            node, local_rank = divmod(rank, ranks_per_node)
            self._seat = Seat(world=world, node=node, local_rank=local_rank, worker=worker_of_rank)
        seat, nodes = self._seat, self._seat.world
        self.node, self.num_nodes, self.is_multinode = seat.node, nodes.num_nodes, nodes.num_nodes > 1
        self.rank, self.num_ranks = seat.rank, nodes.num_ranks
        self.rank_of_node, self.ranks_per_node = seat.local_rank, nodes.ranks_per_node
        self.worker_of_rank, self.workers_per_rank = seat.worker, nodes.workers_per_rank
        self.worker = seat.rank * nodes.workers_per_rank + seat.worker
        self.num_workers = nodes.num_ranks * nodes.workers_per_rank
        self.workers_per_node = nodes.ranks_per_node * nodes.workers_per_rank
        self.worker_of_node = self.worker % self.workers_per_node
        self.is_leader, self.is_local_leader = self.worker == 0, self.worker_of_node == 0

    @classmethod
    def detect(cls) -> World:
        """Find out who this process is."""
        return cls()

    def detect_workers(self) -> World:
        """Return the same rank, as the worker of a loader that this process is now."""
        return _world_of(_with_workers(self._seat))

    def replicate(self, replication: int) -> World:
        """Return the smaller world in which so many consecutive ranks are one, because they get the same samples."""
        return _world_of(replicate_seat(self._seat, replication))

    def copy(self) -> World:
        """Return another one that says the same."""
        return _world_of(self._seat)

    def to_json(self) -> dict[str, Any]:
        """Return all that it says, as plain JSON values."""
        return {name: value for name, value in vars(self).items() if name != "_seat"}


def _world_of(seat: Seat) -> World:
    nodes = seat.world
    worker = seat.rank * nodes.workers_per_rank + seat.worker
    return World(nodes.num_nodes, nodes.ranks_per_node, nodes.workers_per_rank, worker)


def _with_workers(seat: Seat) -> Seat:
    worker, num_workers = worker_of()
    return replace(seat, world=replace(seat.world, workers_per_rank=num_workers), worker=worker)
