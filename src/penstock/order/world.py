"""Who takes part, and who I am: nodes × ranks × workers as plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The processes of a job: nodes, training ranks on each node, and loading workers for each rank."""

    num_nodes: int = 1
    ranks_per_node: int = 1
    workers_per_rank: int = 1

    def __post_init__(self) -> None:
        for name in ("num_nodes", "ranks_per_node", "workers_per_rank"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} is too small: use 1 or more")

    @property
    def num_ranks(self) -> int:
        """Count the training ranks of all nodes."""
        return self.num_nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One place in a world: a node, a rank on that node, a worker of that rank."""

    world: World
    node: int = 0
    local_rank: int = 0
    worker: int = 0

    def __post_init__(self) -> None:
        world = self.world
        for name, limit in (
            ("node", world.num_nodes),
            ("local_rank", world.ranks_per_node),
            ("worker", world.workers_per_rank),
        ):
            if not 0 <= getattr(self, name) < limit:
                raise ConfigError(f"{name}={getattr(self, name)} does not exist: there are {limit}, counted from 0")

    @property
    def rank(self) -> int:
        """Number the rank over all nodes, node after node."""
        return self.node * self.world.ranks_per_node + self.local_rank

    @property
    def residue(self) -> int:
        """Return the r for which this rank owns the positions ≡ r modulo the number of ranks.

        Positions are dealt to nodes first and to the ranks of a node next, so that a node keeps to its own
        lanes.
        """
        return self.node + self.world.num_nodes * self.local_rank

    def step_of(self, turn: int) -> int:
        """Return the step of the rank that is this worker's batch number `turn`: workers take turns."""
        return turn * self.world.workers_per_rank + self.worker


def seats(world: World) -> list[Seat]:
    """List one seat for each rank (worker 0), in order of rank."""
    return [
        Seat(world=world, node=node, local_rank=local_rank)
        for node in range(world.num_nodes)
        for local_rank in range(world.ranks_per_node)
    ]


def replicate(seat: Seat, replication: int) -> Seat:
    """Return the seat that `replication` consecutive ranks share, in the smaller world of such groups.

    Tensor or sequence parallel ranks work on the same samples, so the order counts each group as one rank.
    """
    world = seat.world
    if replication < 1 or world.num_ranks % replication:
        raise ConfigError(
            f"replication={replication} does not divide the {world.num_ranks} ranks evenly: choose a divisor of"
            f" {world.num_ranks}"
        )
    num_groups = world.num_ranks // replication
    # Whole nodes stay nodes; groups that reach across nodes in another pattern make one large node.
    num_nodes = num_groups // world.ranks_per_node if num_groups % world.ranks_per_node == 0 else 1
    smaller = replace(world, num_nodes=num_nodes, ranks_per_node=num_groups // num_nodes)
    group = seat.rank // replication
    node, local_rank = divmod(group, smaller.ranks_per_node)
    return Seat(world=smaller, node=node, local_rank=local_rank, worker=seat.worker)
