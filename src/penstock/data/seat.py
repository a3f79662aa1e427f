"""Who am I: the place of this process in its job, as the launcher, torch, JAX or the user says."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import ConfigError
from penstock.order.world import Seat, World, replicate
from penstock.units import check_whole

if TYPE_CHECKING:
    from collections.abc import Mapping


class Launcher(NamedTuple):
    """The variables in which a launcher says rank, number of ranks, and ranks or nodes of the job."""

    rank: str
    num_ranks: str
    ranks_per_node: str | None = None
    num_nodes: str | None = None


# The first one whose rank and number of ranks are both set is believed. SLURM sets the variables of a step only in
# processes that `srun` started: a script of a job with many tasks is alone until it calls `srun`.
LAUNCHERS = (
    Launcher("RANK", "WORLD_SIZE", ranks_per_node="LOCAL_WORLD_SIZE"),
    Launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", num_nodes="SLURM_STEP_NUM_NODES"),
    Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ranks_per_node="OMPI_COMM_WORLD_LOCAL_SIZE"),
    Launcher("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", ranks_per_node="MV2_COMM_WORLD_LOCAL_SIZE"),
    Launcher("PMI_RANK", "PMI_SIZE", ranks_per_node="MPI_LOCALNRANKS"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatSettings:
    """What the user says of this process's place in the job; all of it may be left to the launcher."""

    rank: int | None = None
    world_size: int | None = None
    num_nodes: int | None = None
    replication: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("rank", 0), ("world_size", 1), ("num_nodes", 1), ("replication", 1)):
            check_whole(name, getattr(self, name), least)
        if self.rank is not None or self.world_size is not None:
            self.find()  # nobody else has to say anything

    def find(self) -> Seat:
        """Find the seat as it is now."""
        seat = find_seat(rank=self.rank, world_size=self.world_size, num_nodes=self.num_nodes)
        return seat if self.replication is None else replicate(seat, self.replication)


def find_seat(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    num_nodes: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Seat:
    """Find this process's seat: what the user says, else torch.distributed, else JAX, else the environment, else alone.

    Nothing is initialised, and nobody else is asked.
    """
    if rank is not None or world_size is not None:
        if rank is None or world_size is None:
            raise ConfigError("rank and world_size belong together: pass both or neither")
        return _seat(rank, world_size, num_nodes or 1)
    group = _process_group()
    if group is not None:
        return _seat(*group, num_nodes or _count_nodes(group[1], environ, 1))
    processes = _jax_processes()
    if processes is not None:  # most often one to a host; several that share one lose nothing by being taken for more
        return _seat(*processes, num_nodes or _count_nodes(processes[1], environ, processes[1]))
    for launcher in LAUNCHERS:
        if launcher.rank in environ and launcher.num_ranks in environ:
            number, num_ranks = _whole(environ, launcher.rank), _whole(environ, launcher.num_ranks)
            return _seat(number, num_ranks, num_nodes or _nodes_of(launcher, num_ranks, environ))
    return _seat(0, 1, num_nodes or 1)


def worker_of() -> tuple[int, int]:
    """Return the number of this data loader worker and how many there are; (0, 1) in any other process."""
    info = _worker_info()
    return (0, 1) if info is None else (int(info.id), int(info.num_workers))


def worker_number() -> int | None:
    """Return the number of this data loader worker, None in any other process."""
    return worker_of()[0] if is_worker() else None


def is_worker() -> bool:
    """Return whether this process is a data loader worker."""
    return _worker_info() is not None


def pass_key() -> str | None:
    """Name the pass that this worker works for: torch draws one seed for the workers of a pass. None elsewhere."""
    info = _worker_info()
    return None if info is None else str(int(info.seed) - int(info.id))


def _worker_info() -> Any:
    # A process that never imported torch is nobody's worker.
    torch_data = sys.modules.get("torch.utils.data")
    return None if torch_data is None else torch_data.get_worker_info()


def _process_group() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _jax_processes() -> tuple[int, int] | None:
    """Return the number of this process and how many there are, if jax.distributed is initialised.

    `jax.process_index()` would say the same, but not before it has initialised the devices.
    """
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if getattr(state, "client", None) is None:
        return None
    return int(state.process_id), int(state.num_processes)  # type: ignore[union-attr]


def _count_nodes(num_ranks: int, environ: Mapping[str, str], otherwise: int) -> int:
    """Return how many nodes a process group spans: the environment knows, if it speaks of the same world."""
    for launcher in LAUNCHERS:
        if launcher.num_ranks in environ and _whole(environ, launcher.num_ranks) == num_ranks:
            return _nodes_of(launcher, num_ranks, environ)
    return otherwise


def _nodes_of(launcher: Launcher, num_ranks: int, environ: Mapping[str, str]) -> int:
    if launcher.num_nodes is not None:
        return _whole(environ, launcher.num_nodes) if launcher.num_nodes in environ else 1
    # MosaicML counts every rank as a node of its own if nobody says how many share one, and so its orders do.
    per_node = launcher.ranks_per_node
    ranks_per_node = _whole(environ, per_node) if per_node is not None and per_node in environ else 1
    return max(1, num_ranks // max(1, ranks_per_node))


def _whole(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError as error:
        raise ConfigError(f"the environment variable {name}={environ[name]!r} is not a whole number") from error


def _seat(rank: int, num_ranks: int, num_nodes: int) -> Seat:
    if num_ranks < 1 or not 0 <= rank < num_ranks:
        raise ConfigError(f"rank {rank} of {num_ranks} does not exist: ranks count from 0")
    if num_nodes < 1 or num_ranks % num_nodes:
        raise ConfigError(
            f"{num_ranks} ranks cannot be spread evenly over {num_nodes} nodes: each node must have the same"
            " number of ranks"
        )
    world = World(num_nodes=num_nodes, ranks_per_node=num_ranks // num_nodes)
    node, local_rank = divmod(rank, world.ranks_per_node)
    return Seat(world=world, node=node, local_rank=local_rank)
