"""How the positions of an epoch are dealt to nodes, ranks and batches."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import ConfigError, ResumeError
from penstock.order.mosaic.ids import EMPTY, PIECE, IdArray, dtype_for

PARTITION_ALGORITHMS = ("orig", "relaxed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Who shares an epoch: nodes × ranks, each rank taking `batch_size` samples at a time."""

    num_nodes: int
    ranks_per_node: int
    batch_size: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return nodes, ranks per node and samples per rank."""
        return self.num_nodes, self.ranks_per_node, self.batch_size

    @property
    def num_ranks(self) -> int:
        """Count the ranks of all nodes."""
        return self.num_nodes * self.ranks_per_node

    @property
    def global_batch_size(self) -> int:
        """Count the samples that all ranks together take at a time."""
        return self.num_ranks * self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBatches:
    """What is left of an epoch, cut in global batches, and how each of them is shared out.

    `body` and `tail` are `[batch][entry]` in global order, as a rule views of one array for the whole epoch.
    The entries of a batch are dealt one by one to the nodes of `dealing` and their ranks, or, where that is
    None, lie in order of ranks already. `cluster` takes the batches.
    """

    body: IdArray
    tail: IdArray
    cluster: Cluster
    dealing: Cluster | None = None

    def __len__(self) -> int:
        return len(self.body) + len(self.tail)

    def entries(self, batch_id: int) -> IdArray:
        """Return one global batch in global order, -1 where a slot is empty."""
        num_body = len(self.body)
        entries: IdArray = self.body[batch_id] if batch_id < num_body else self.tail[batch_id - num_body]
        return entries

    def by_rank(self, batch_id: int) -> IdArray:
        """Return one global batch as `[node][rank][slot]`."""
        shared_out: IdArray = self._share_out(self.entries(batch_id)[np.newaxis])[0]
        return shared_out

    def places(self) -> IdArray:
        """Return the places of a batch that each rank gets, as `[node][rank][slot]`."""
        dealt: IdArray = self._share_out(np.arange(self.body.shape[1])[np.newaxis])[0]
        return dealt

    def num_batches(self, node: int, rank: int) -> int:
        """Count the batches up to the last one in which a rank gets anything."""
        num_batches = len(self)
        while num_batches and (self.by_rank(num_batches - 1)[node, rank] == EMPTY).all():
            num_batches -= 1
        return num_batches

    def stack(self) -> IdArray:
        """Return everything as `[batch][node][rank][slot]`."""
        return self._share_out(np.concatenate([self.body, self.tail]))

    def by_worker(self, workers_per_rank: int) -> IdArray:
        """Return everything as `[node][rank][worker][batch][slot]`, workers taking batches in turn."""
        batches = self.stack()
        filler = np.full((-len(self) % workers_per_rank, *batches.shape[1:]), EMPTY, batches.dtype)
        by_turn = np.concatenate([batches, filler]).reshape(-1, workers_per_rank, *batches.shape[1:])
        return by_turn.transpose(2, 3, 1, 0, 4)

    def _share_out(self, batches: IdArray) -> IdArray:
        """Turn `[batch][entry]` into `[batch][node][rank][slot]`."""
        if self.dealing is not None:
            num_nodes, ranks, slots = self.dealing.shape
            batches = batches.reshape(-1, slots, ranks, num_nodes).transpose(0, 3, 2, 1)
        return batches.reshape(-1, *self.cluster.shape)


def list_positions(
    num_samples: int, num_canonical_nodes: int, num_nodes: int, *, num_ids: int = 0, is_release_0_5: bool = False
) -> IdArray:
    """List the positions of an epoch as nodes are dealt them, one from each canonical node in turn.

    The list is a little longer than the epoch where the canonical nodes do not divide it. It depends on the
    number of nodes only where these outnumber the canonical ones. Its type has room for the `num_ids` ids
    that are to take the place of the positions.
    """
    dtype = dtype_for(max(num_samples, num_ids))
    dealt_per_column = _nodes_per_canonical_node(num_canonical_nodes, num_nodes)
    num_columns = -(-num_samples // num_canonical_nodes)
    num_padding = -num_columns % dealt_per_column
    is_large = num_samples > num_canonical_nodes or (
        num_samples == num_canonical_nodes and num_canonical_nodes >= num_nodes
    )
    if is_large or is_release_0_5:
        columns = _list_columns(num_samples, num_canonical_nodes, num_columns, num_columns + num_padding, dtype)
        if num_padding:
            _pad_columns(columns, num_padding, dealt_per_column)
        return columns.reshape(-1)
    return _repeat_few(num_samples, num_canonical_nodes, num_columns + num_padding, dtype)


def check_dropped(num_samples: int, num_dropped: int, num_ranks: int) -> None:
    """Refuse to leave out more than an epoch, its repeats included."""
    most = num_samples + num_ranks - num_samples % num_ranks
    if most < num_dropped:
        raise ResumeError(
            f"Resuming further into the dataset ({num_dropped} samples) than an epoch has ({num_samples}): "
            "the state belongs to another dataset or epoch size"
        )


def deal(
    listed: IdArray, num_dropped: int, dealing: Cluster, cluster: Cluster, *, is_release_0_5: bool = False
) -> EpochBatches:
    """Deal a list, but for its dropped beginning, to nodes in turn and then to their ranks.

    The nodes are those of the `dealing` cluster; `cluster` takes the batches, and is another one only where
    `dealing_cluster` says so.
    """
    rest = listed[_drop_whole_rounds(len(listed), num_dropped, dealing.num_nodes, is_release_0_5) :]
    size = dealing.global_batch_size
    num_whole = len(rest) // size * size
    rounds = rest.reshape(-1, dealing.num_nodes)
    repeated = rounds_repeated(len(rounds), dealing.ranks_per_node, is_release_0_5=is_release_0_5)
    last = np.concatenate([rest[num_whole:], rounds[repeated].reshape(-1)])
    empty = np.full(-len(last) % size, EMPTY, listed.dtype)
    return EpochBatches(
        body=rest[:num_whole].reshape(-1, size),
        tail=np.concatenate([last, empty]).reshape(-1, size),
        cluster=cluster,
        dealing=dealing,
    )


def even_out(rounds: IdArray, ranks: int) -> IdArray:
    """Append to a list of rounds those that are dealt twice."""
    repeated = rounds_repeated(len(rounds), ranks)
    return np.concatenate([rounds, rounds[repeated]]) if len(repeated) else rounds


def rounds_repeated(num_rounds: int, ranks: int, *, is_release_0_5: bool = False) -> IdArray:
    """Return which rounds of a list are dealt twice, so that all ranks of a node get equally many."""
    num_repeated = -num_rounds % ranks
    if not num_repeated:
        return np.empty(0, np.int64)
    first = num_rounds - ranks - num_repeated + 1
    if first >= 0:
        return np.arange(first, first + num_repeated)
    if is_release_0_5:
        raise ConfigError(
            f"{num_rounds} samples per node are too few for {ranks} ranks in the order of release 0.5: use fewer ranks"
        )
    warnings.warn(
        f"Attempting to partition {num_rounds} samples of a node over {ranks} ranks: some samples are repeated",
        stacklevel=2,
    )
    return np.arange(num_repeated) % num_rounds


def dealing_cluster(algorithm: str, num_canonical_nodes: int, cluster: Cluster, initial_nodes: int | None) -> Cluster:
    """Return the cluster that an epoch is dealt to: as a rule this one.

    A run resumed with `relaxed` partitioning on an awkward number of nodes goes on with the global batches of
    the cluster that began it, which is taken to have had as many ranks per node and the same global batch.
    """
    fits = num_canonical_nodes % cluster.num_nodes == 0 or cluster.num_nodes % num_canonical_nodes == 0
    if algorithm == "orig" or initial_nodes is None or fits:
        return cluster
    num_ranks = initial_nodes * cluster.ranks_per_node
    if cluster.global_batch_size % num_ranks:
        raise ResumeError(
            f"a global batch of {cluster.global_batch_size} cannot be divided among the {num_ranks} ranks"
            f" ({initial_nodes} nodes × {cluster.ranks_per_node}) that started the run: change batch_size"
        )
    return Cluster(
        num_nodes=initial_nodes,
        ranks_per_node=cluster.ranks_per_node,
        batch_size=cluster.global_batch_size // num_ranks,
    )


def _nodes_per_canonical_node(num_canonical_nodes: int, num_nodes: int) -> int:
    if num_canonical_nodes % num_nodes and num_nodes % num_canonical_nodes:
        raise ConfigError(
            f"num_canonical_nodes={num_canonical_nodes} is neither a multiple nor a divisor of the {num_nodes}"
            " nodes of this run: change one of the two"
        )
    return max(1, num_nodes // num_canonical_nodes)


def _list_columns(
    num_samples: int, num_rows: int, num_columns: int, num_all_columns: int, dtype: type[np.signedinteger[Any]]
) -> IdArray:
    """Lay each canonical node's positions in a row; return the columns one after the other."""
    bounds = num_samples * np.arange(num_rows + 1) // num_rows
    columns = np.empty((num_all_columns, num_rows), dtype)
    step = max(1, PIECE // num_rows)
    for begin in range(0, num_all_columns, step):
        piece = columns[begin : begin + step]
        piece[:] = np.arange(begin, begin + len(piece))[:, np.newaxis] + bounds[:-1]
    # A row that is one short repeats its last position.
    columns[num_columns - 1 : num_columns] -= np.diff(bounds) < num_columns
    return columns


def _pad_columns(columns: IdArray, num_padding: int, dealt_per_column: int) -> None:
    """Overwrite the last columns with earlier ones, so that nodes of one canonical node get equally many."""
    begin = len(columns) - 2 * num_padding - dealt_per_column + 1
    # A negative begin counts from the end, as in the original: with very few samples that cannot be filled.
    repeated = columns[begin : begin + num_padding]
    if len(repeated) not in (1, num_padding):
        raise ConfigError(
            f"{columns.shape[1]} canonical nodes have too few samples for {dealt_per_column} nodes each: "
            "use fewer nodes"
        )
    columns[-num_padding:] = repeated


def _repeat_few(num_samples: int, num_rows: int, num_columns: int, dtype: type[np.signedinteger[Any]]) -> IdArray:
    warnings.warn(
        f"Trying to partition {num_samples} samples over {num_rows} canonical nodes: some samples are repeated",
        stacklevel=2,
    )
    positions = np.arange(num_samples, dtype=dtype)
    return np.resize(positions, (num_rows, num_columns)).T.reshape(-1)


def _drop_whole_rounds(num_listed: int, num_dropped: int, num_nodes: int, is_release_0_5: bool) -> int:
    if not is_release_0_5:
        num_dropped -= num_dropped % num_nodes
    num_dropped = min(num_dropped, num_listed)
    if (num_listed - num_dropped) % num_nodes:
        raise ResumeError(
            f"cannot resume after {num_dropped} samples on {num_nodes} nodes in the order of release 0.5: use a"
            " number of nodes that divides the number of samples"
        )
    return num_dropped
