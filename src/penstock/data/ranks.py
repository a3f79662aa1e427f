"""The ranks of a job: which of them this process is, as the launcher, torch, JAX or the user says; what they opened.

All ranks must read the same data: nodes that list a store at different moments could see different files. Ranks compare
what they opened through the key-value store of the job, that of torch.distributed or of JAX, where there is one. It
is no collective: a rank that reads a dataset alone would wait for ever.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import ConfigError, ObjectChangedError
from penstock.order.world import Seat, World, replicate
from penstock.units import check_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
            self.find()  # nothing else has to be said

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

    Nothing is initialised, and no other process is asked.
    """
    if rank is not None or world_size is not None:
        if rank is None or world_size is None:
            raise ConfigError("rank and world_size belong together: pass both or neither")
        return _seat(rank, world_size, num_nodes or 1)
    group = _torch_distributed()
    if group is not None:
        num_ranks = int(group.get_world_size())
        return _seat(int(group.get_rank()), num_ranks, num_nodes or _count_nodes(num_ranks, environ, 1))
    jax = _jax_distributed()
    if jax is not None:  # most often one to a host; several that share one lose nothing by being taken for more
        num_ranks = int(jax.num_processes)
        return _seat(int(jax.process_id), num_ranks, num_nodes or _count_nodes(num_ranks, environ, num_ranks))
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
    # A process that never imported torch is no worker.
    torch_data = sys.modules.get("torch.utils.data")
    return None if torch_data is None else torch_data.get_worker_info()


def _torch_distributed() -> Any:
    """Return `torch.distributed`, if this process is part of a group."""
    distributed = sys.modules.get("torch.distributed")
    is_in_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if is_in_group else None


def _jax_distributed() -> Any:
    """Return what `jax.distributed` knows, if it is initialised.

    `jax.process_index()` would say which process this is, too, but not before it has initialised the devices.
    """
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return None if getattr(state, "client", None) is None else state


def _count_nodes(num_ranks: int, environ: Mapping[str, str], otherwise: int) -> int:
    """Return how many nodes a process group spans: the environment knows, if it speaks of the same world."""
    for launcher in LAUNCHERS:
        if launcher.num_ranks in environ and _whole(environ, launcher.num_ranks) == num_ranks:
            return _nodes_of(launcher, num_ranks, environ)
    return otherwise


def _nodes_of(launcher: Launcher, num_ranks: int, environ: Mapping[str, str]) -> int:
    if launcher.num_nodes is not None:
        return _whole(environ, launcher.num_nodes) if launcher.num_nodes in environ else 1
    # MosaicML counts every rank as a node of its own unless it is said how many share one, and so its orders do.
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


# --- What ranks opened -----------------------------------------------------------------------------------------------


_log = logging.getLogger("penstock.data")
# How long the first pass waits for ranks that have not opened the dataset yet. One that comes later is told itself.
_PATIENCE_S = 10.0
_ASK_EVERY_S = 0.05
_asked: Counter[str] = Counter()  # how often this process opened the same data: they may have been written again


class Agreement:
    """What this rank opened, compared with what the others did."""

    def __init__(self, places: Sequence[str], found: str) -> None:
        """Take where the data are, which is the same on all ranks, and what was found there."""
        question = hashlib.sha256(json.dumps(list(places)).encode()).hexdigest()[:16]
        _asked[question] += 1
        self._places, self._found = places, found
        self._base = f"penstock/{question}/{_asked[question]}"
        self._has_told = self._is_resolved = False

    def tell(self, num_ranks: int) -> None:
        """Send the others what was found, and raise if one of them found something else; never waits."""
        store = None if self._is_resolved or num_ranks == 1 else find_job_store()
        if store is None or store.num_ranks != num_ranks:
            return
        if not self._has_told:
            if store.set_first(f"{self._base}/found", self._found) != self._found:
                store.set(f"{self._base}/differs", str(store.rank))
                raise self._differ()
            store.set(f"{self._base}/rank-{store.rank}", "same")
            self._has_told = True
        self._check(store)

    def resolve(self, num_ranks: int) -> None:
        """Wait until all have told what they found, though not for ever, and raise if they differ."""
        self.tell(num_ranks)
        store = find_job_store() if self._has_told and not self._is_resolved else None
        end = time.monotonic() + _PATIENCE_S
        while store is not None and not self._is_resolved and time.monotonic() < end:
            time.sleep(_ASK_EVERY_S)
            self._check(store)
        if store is not None and not self._is_resolved:
            _log.info(
                "not all ranks have opened this dataset yet, so penstock cannot check that they all see the same files"
            )
            self._is_resolved = True

    def _check(self, store: _TorchStore | _JaxStore) -> None:
        if store.has([f"{self._base}/differs"]):
            raise self._differ()
        self._is_resolved = store.has([f"{self._base}/rank-{rank}" for rank in range(store.num_ranks)])

    def _differ(self) -> ObjectChangedError:
        return ObjectChangedError(
            f"the ranks of this job found different data in {', '.join(self._places)}: files were added or changed"
            " while the job was starting. Start it again when all are there, or make the index first (penstock index)"
        )


def find_job_store() -> _TorchStore | _JaxStore | None:
    """Return the key-value store of the job, if this process is part of one."""
    distributed, jax = _torch_distributed(), _jax_distributed()
    if distributed is not None:
        return _TorchStore(distributed)
    return None if jax is None else _JaxStore(jax)


class _TorchStore:
    """Where ranks leave notes for each other: of torch."""

    def __init__(self, distributed: Any) -> None:
        self.rank, self.num_ranks = int(distributed.get_rank()), int(distributed.get_world_size())
        self._store = distributed.distributed_c10d._get_default_store()

    def set_first(self, key: str, value: str) -> str:
        found: bytes = self._store.compare_set(key, "", value)
        return found.decode()

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def has(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(list(keys)))

    def get_all(self, keys: Sequence[str]) -> list[str]:
        return [self._store.get(key).decode() for key in keys if self.has([key])]


class _JaxStore:
    """The same of JAX."""

    _AT_ONCE_MS = 1
    _ANSWER_MS = 10_000

    def __init__(self, state: Any) -> None:
        self.rank, self.num_ranks = int(state.process_id), int(state.num_processes)
        self._client = state.client

    def set_first(self, key: str, value: str) -> str:
        try:
            self._client.key_value_set(key, value)
        except Exception:  # noqa: BLE001  jaxlib's own, of no class that can be named: another rank was first
            return str(self._client.blocking_key_value_get(key, self._ANSWER_MS))
        return value

    def set(self, key: str, value: str) -> None:
        self._client.key_value_set(key, value, allow_overwrite=True)

    def get_all(self, keys: Sequence[str]) -> list[str]:
        return [self._client.blocking_key_value_get(key, self._ANSWER_MS) for key in keys if self.has([key])]

    def has(self, keys: Sequence[str]) -> bool:
        try:
            for key in keys:
                self._client.blocking_key_value_get(key, self._AT_ONCE_MS)
        except Exception:  # noqa: BLE001  as above: it was not set
            return False
        return True
