"""Small names of MosaicML Streaming's that need a line or two here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.data.getitem import items_at
from penstock.data.mosaic_names import Spanner as _Spanner
from penstock.data.seat import find_seat, worker_of
from penstock.data.stream import stream_classes
from penstock.index.catalog import INDEX_NAME
from penstock.order.id_spans import IdSpans
from penstock.order.world import Seat
from penstock.order.world import World as Nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = "0.13.0"  # the release whose names and behaviour these are


def clean_stale_shared_memory() -> None:
    """Do nothing: penstock leaves nothing behind in shared memory."""


def get_list_arg(text: str) -> list[str]:
    """Split a list that was written with commas."""
    return text.split(",") if text else []


def get_index_basename() -> str:
    """Name the index file of a dataset."""
    return INDEX_NAME


class StreamsRegistry:
    """The classes that `stream_name=` of a dataset names, with the methods of the original's registry."""

    def register(self, name: str, *, func: Any = None) -> Any:
        """Let a name stand for a class, or decorate that class."""
        add = stream_classes.register(name)
        return add if func is None else add(func)

    def get(self, name: str) -> Any:
        """Give the class of a name."""
        return stream_classes.get(name)

    def get_all(self) -> dict[str, Any]:
        """Give all classes by name."""
        return {name: stream_classes.get(name) for name in stream_classes.names()}

    def __contains__(self, name: str) -> bool:
        return name in stream_classes


streams_registry = StreamsRegistry()


class Spanner(_Spanner):
    """Finds the shard of a sample and its place in there: `shard, row = spanner[sample]`."""

    def __init__(self, shard_sizes: Sequence[int], span_size: int = 1 << 10) -> None:  # noqa: ARG002
        super().__init__(IdSpans(shard_sizes))


class Array(ABC):
    """Gives items by number, slice, list or array of numbers to whoever defines `size` and `get_item`."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of items."""

    @abstractmethod
    def get_item(self, idx: int) -> Any:
        """Give one item by its number, counted from 0."""

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, at: Any) -> Any:
        return items_at(at, self.size, lambda ids: [self.get_item(int(number)) for number in ids])


class World:
    """Who this process is: its node, rank and worker, of how many. Without arguments, as it is now."""

    def __init__(
        self,
        num_nodes: int | None = None,
        ranks_per_node: int = 1,
        workers_per_rank: int = 1,
        worker: int = 0,
    ) -> None:
        if num_nodes is None:
            self._seat = _here()
            return
        world = Nodes(num_nodes=num_nodes, ranks_per_node=ranks_per_node, workers_per_rank=workers_per_rank)
        rank, worker_of_rank = divmod(worker, workers_per_rank)
        node, local_rank = divmod(rank, ranks_per_node)
        self._seat = Seat(world=world, node=node, local_rank=local_rank, worker=worker_of_rank)

    @classmethod
    def detect(cls) -> World:
        """Find out who this process is."""
        return cls()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return _describe(self._seat)[name]
        except KeyError:
            raise AttributeError(
                f"World has no attribute {name!r}: it has {', '.join(_describe(self._seat))}"
            ) from None


def _here() -> Seat:
    seat, (worker, num_workers) = find_seat(), worker_of()
    return replace(seat, world=replace(seat.world, workers_per_rank=num_workers), worker=worker)


def _describe(seat: Seat) -> dict[str, Any]:
    world = seat.world
    workers_per_node = world.ranks_per_node * world.workers_per_rank
    worker = seat.rank * world.workers_per_rank + seat.worker
    return {
        "node": seat.node,
        "num_nodes": world.num_nodes,
        "is_multinode": world.num_nodes > 1,
        "rank": seat.rank,
        "num_ranks": world.num_ranks,
        "rank_of_node": seat.local_rank,
        "ranks_per_node": world.ranks_per_node,
        "worker": worker,
        "num_workers": world.num_ranks * world.workers_per_rank,
        "worker_of_node": worker % workers_per_node,
        "workers_per_node": workers_per_node,
        "worker_of_rank": seat.worker,
        "workers_per_rank": world.workers_per_rank,
        "is_leader": worker == 0,
        "is_local_leader": worker % workers_per_node == 0,
    }
