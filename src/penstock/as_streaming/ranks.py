"""MosaicML Streaming's `World` and `distributed`, from our seats and worlds and from torch's groups."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.data.ranks import find_seat, worker_of
from penstock.errors import NoProcessGroupError
from penstock.extras import require
from penstock.order.world import Seat
from penstock.order.world import World as Nodes
from penstock.order.world import replicate as replicate_seat

if TYPE_CHECKING:
    import torch


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


def get_rank() -> int:
    """Return the rank of this process in the whole job."""
    return find_seat().rank


def get_world_size() -> int:
    """Count the ranks of the job."""
    return find_seat().world.num_ranks


def get_local_rank() -> int:
    """Return the rank of this process on its node."""
    return find_seat().local_rank


def get_local_world_size() -> int:
    """Count the ranks of a node."""
    return find_seat().world.ranks_per_node


def maybe_init_dist() -> bool:
    """Do nothing: no process group is needed here, and none has to be ended."""
    return False


def barrier() -> None:
    """Wait for all ranks, if there is more than one."""
    if _is_needed():
        _distributed().barrier()


def broadcast(tensor: torch.Tensor, src: int) -> None:
    """Broadcast the tensor of one rank to all of them, in place."""
    if _is_needed():
        _distributed().broadcast(tensor, src)


def all_gather(tensor_list: list[torch.Tensor], tensor: torch.Tensor) -> None:
    """Fill the list with the tensors of all ranks."""
    if _is_needed():
        _distributed().all_gather(tensor_list, tensor)
    else:
        tensor_list[0] = tensor


def all_gather_object(obj: Any) -> list[Any]:
    """Return a list of the objects of all ranks."""
    if not _is_needed():
        return [obj]
    gathered = [None] * get_world_size()
    _distributed().all_gather_object(gathered, obj)
    return list(gathered)


def _is_needed() -> bool:
    """Return whether there are ranks to talk to; ranks without a process group cannot, which is an error."""
    distributed = _distributed()
    if distributed.is_available() and distributed.is_initialized():
        return True
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if num_ranks > 1:
        raise NoProcessGroupError(
            f"this job has {num_ranks} ranks but no process group: call torch.distributed.init_process_group() first"
        )
    return False


def _distributed() -> Any:
    return require("torch.distributed", extra="torch", purpose="streaming.base.distributed")
