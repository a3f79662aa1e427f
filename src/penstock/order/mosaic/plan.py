"""MosaicML-compatible orders behind the same questions as the native one."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from penstock.errors import ConfigError
from penstock.order.cursor import STATE_VERSION
from penstock.order.id_spans import IdSpans
from penstock.order.lru import LRU
from penstock.order.mosaic.epoch import ROWS_BY_METHOD, WeightedStream, list_ids
from penstock.order.mosaic.ids import EMPTY, IdArray
from penstock.order.mosaic.partition import Cluster, EpochBatches, check_dropped, deal, dealing_cluster
from penstock.order.mosaic.rules import MosaicState
from penstock.order.mosaic.sampling import lay_shards, share_out
from penstock.order.plan import first_uses
from penstock.order.weights import StreamWeight

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.order.cursor import Cursor
    from penstock.order.mosaic.rules import MosaicOptions, MosaicRules
    from penstock.order.world import Seat, World
    from penstock.types import Int64Array


class ComputeOnce(Protocol):
    """Keeps arrays by name, in memory or in a file that the processes of a node share.

    Names have letters, digits and hyphens only.
    """

    def __call__(self, name: str, compute: Callable[[], IdArray], /) -> IdArray:
        """Return the array of that name, computing it if it is not there yet. It is not to be written to."""


def _keep_last() -> ComputeOnce:
    return LRU[IdArray](1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MosaicPlan:
    """Answers who gets which samples, in the order that MosaicML Streaming would have used.

    An epoch is computed once, as one array of ids that serves every place in the epoch; what depends on the
    place and, with batching method `random`, on the world is arithmetic on top of it. `num_nodes` is how many
    nodes began the run.
    """

    streams: tuple[WeightedStream, ...]
    rules: MosaicRules
    num_nodes: int
    # One epoch at a time: two of them in memory would be one too many.
    compute_once: ComputeOnce = field(default_factory=_keep_last, compare=False)
    fingerprint: str = field(init=False)
    _shards: IdSpans = field(init=False, compare=False, repr=False)
    _last_pass: LRU[EpochBatches] = field(init=False, default_factory=lambda: LRU(1), compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", _take_fingerprint(self.streams, self.rules))
        sizes = np.concatenate([stream.shards.sizes for stream in self.streams])
        object.__setattr__(self, "_shards", IdSpans(sizes))

    @classmethod
    def make(
        cls,
        shard_sizes: Sequence[Sequence[int]],
        options: MosaicOptions,
        *,
        num_nodes: int,
        weights: Sequence[StreamWeight] | None = None,
        state: MosaicState | None = None,
        compute_once: ComputeOnce | None = None,
    ) -> MosaicPlan:
        """Plan a run over streams, given by their shard sizes, that begins or is resumed on so many nodes."""
        if not any(map(sum, shard_sizes)):
            raise ConfigError("there are no samples to plan for: pass at least one stream that is not empty")
        laid = lay_shards(shard_sizes)
        shares = share_out(
            [shards.num_samples for shards in laid],
            weights or [StreamWeight()] * len(laid),
            epoch_size=options.num_samples_per_epoch,
            seed=options.shuffle_seed,
            may_cut_unweighted=not options.is_release_0_5,
        )
        rules = options.resolve(num_nodes)
        if state is not None:
            rules = state.adopt(rules)
        return cls(
            streams=tuple(
                WeightedStream(shards=shards, share=share) for shards, share in zip(laid, shares, strict=True)
            ),
            rules=rules,
            num_nodes=rules.initial_nodes or num_nodes,
            compute_once=compute_once or _keep_last(),
        )

    def epoch_size(self, epoch: int) -> int:  # noqa: ARG002
        """Count the samples of an epoch, without the repeats that make ranks equal."""
        return sum(stream.share.choose for stream in self.streams)

    @property
    def pads_epochs(self) -> bool:
        """Whether an epoch is laid out in whole batches, so that it may end before or after its last sample."""
        return self.rules.batching_method != "random"

    def end(self, at: Cursor, world: World, global_batch_size: int) -> int:
        """Return the position at which the epoch of a cursor is over."""
        if not self.pads_epochs:
            return self.epoch_size(at.epoch)
        rows = self.epoch_batches(at, world, global_batch_size).body
        num_left = len(rows)
        while num_left and (rows[num_left - 1] == EMPTY).all():
            num_left -= 1
        return (at.position // global_batch_size + num_left) * global_batch_size

    def num_batches(self, at: Cursor, seat: Seat, global_batch_size: int) -> int:
        """Count the steps that this rank takes from the cursor to the end of the epoch."""
        batches = self.epoch_batches(at, seat.world, global_batch_size)
        return batches.num_batches(seat.node, seat.local_rank)

    def global_batch(self, at: Cursor, step: int, world: World, global_batch_size: int) -> Int64Array:
        """Return the ids of one global batch in global order; empty past the end of the epoch."""
        batches = self.epoch_batches(at, world, global_batch_size)
        if step >= len(batches):
            return np.empty(0, np.int64)
        return _without_empty(batches.entries(step))

    def batch(self, at: Cursor, step: int, seat: Seat, global_batch_size: int) -> Int64Array:
        """Return the ids of one rank's share of a global batch; empty past the end of the epoch."""
        batches = self.epoch_batches(at, seat.world, global_batch_size)
        if step >= len(batches):
            return np.empty(0, np.int64)
        return _without_empty(batches.by_rank(step)[seat.node, seat.local_rank])

    def positions_of_batch(self, at: Cursor, step: int, seat: Seat, global_batch_size: int) -> Int64Array:
        """Return the positions of one rank's share of a global batch in the epoch."""
        batches = self.epoch_batches(at, seat.world, global_batch_size)
        is_there = batches.by_rank(step)[seat.node, seat.local_rank] != EMPTY
        places: Int64Array = batches.places()[seat.node, seat.local_rank][is_there]
        return at.position + step * global_batch_size + places

    def batches(self, at: Cursor, steps: range, seat: Seat, global_batch_size: int) -> list[Int64Array]:
        """Return the same for several steps at once."""
        return [self.batch(at, step, seat, global_batch_size) for step in steps]

    def upcoming_shards(
        self, at: Cursor, step: int, num_steps: int, seat: Seat, global_batch_size: int, *, of: Literal["rank", "node"]
    ) -> Int64Array:
        """List the shards that the rank or its node touches in the next steps, in order of first use."""
        batches = self.epoch_batches(at, seat.world, global_batch_size)
        ranks = slice(None) if of == "node" else slice(seat.local_rank, seat.local_rank + 1)
        # Ranks work side by side: every rank's first sample of a batch, then every second one, and so on.
        wanted = [
            batches.by_rank(batch_id)[seat.node, ranks].T.reshape(-1)
            for batch_id in range(step, min(step + num_steps, len(batches)))
        ]
        if not wanted:
            return np.empty(0, np.int64)
        shard_ids, _ = self._shards.locate(_without_empty(np.concatenate(wanted)))
        distinct, first_uses = np.unique(shard_ids, return_index=True)
        return distinct[np.argsort(first_uses)]

    def expected_shards(
        self, at: Cursor, step: int, num_steps: int, seat: Seat, global_batch_size: int
    ) -> tuple[Int64Array, Int64Array]:
        """Return the shards that the rank needs in the next steps, and in how many steps each is first used."""
        batches = self.epoch_batches(at, seat.world, global_batch_size)
        wanted = [
            _without_empty(batches.by_rank(batch_id)[seat.node, seat.local_rank])
            for batch_id in range(step, min(step + num_steps, len(batches)))
        ]
        if not wanted:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        shards, _ = self._shards.locate(np.concatenate(wanted))
        return first_uses(shards, np.repeat(np.arange(len(wanted)), [len(ids) for ids in wanted]))

    def state_dict(self, at: Cursor) -> dict[str, Any]:
        """Describe the cursor and what a plan must adopt to go on from it.

        The fields that MosaicML's own state has are there under its names, so it can be loaded there, too.
        """
        return {
            "version": STATE_VERSION,
            "order": "mosaic",
            "fingerprint": self.fingerprint,
            "position": at.position,
            **({"pads_epochs": True} if self.pads_epochs else {}),
            **self.mosaic_state(at).to_dict(),
        }

    def mosaic_state(self, at: Cursor) -> MosaicState:
        """Describe the cursor as MosaicML does."""
        return MosaicState(
            epoch=at.epoch,
            sample_in_epoch=at.position,
            num_canonical_nodes=self.rules.num_canonical_nodes,
            shuffle_seed=self.rules.shuffle_seed,
            initial_physical_nodes=None if self.rules.is_release_0_5 else self.num_nodes,
        )

    def epoch_batches(self, at: Cursor, world: World, global_batch_size: int) -> EpochBatches:
        """Cut what is left of an epoch in global batches and deal them to a world."""
        cluster = _cluster_of(world, global_batch_size)
        is_random = self.rules.batching_method == "random"
        return self._last_pass(
            f"{at} {cluster}", lambda: self._deal_epoch(at, cluster) if is_random else self._cut_rows(at, cluster)
        )

    def _deal_epoch(self, at: Cursor, cluster: Cluster) -> EpochBatches:
        rules = self.rules
        if not rules.is_release_0_5:  # which takes any place beyond the epoch for its end
            check_dropped(self.epoch_size(at.epoch), at.position, cluster.num_ranks)
        dealing = dealing_cluster(rules.partition_algo, rules.num_canonical_nodes, cluster, rules.initial_nodes)
        # Up to the number of canonical nodes, all numbers of nodes are dealt the same list.
        num_nodes = max(dealing.num_nodes, rules.num_canonical_nodes)
        listed = self.compute_once(
            self._name_array(at.epoch, f"nodes-{num_nodes}"),
            lambda: list_ids(self.streams, rules, at.epoch, num_nodes=dealing.num_nodes, block_size=rules.block_size),
        )
        return deal(listed, at.position, dealing, cluster, is_release_0_5=rules.is_release_0_5)

    def _cut_rows(self, at: Cursor, cluster: Cluster) -> EpochBatches:
        rows = self.compute_once(
            self._name_array(at.epoch, "-".join(map(str, (*cluster.shape, self.rules.initial_nodes or 0)))),
            lambda: ROWS_BY_METHOD[self.rules.batching_method](self.streams, self.rules, at.epoch, cluster),
        )
        num_rows, rest = divmod(at.position, cluster.global_batch_size)
        if rest:
            warnings.warn(
                f"resuming after {at.position} samples, which is not a multiple of the global batch of"
                f" {cluster.global_batch_size}: {rest} samples will be seen again",
                stacklevel=2,
            )
        return EpochBatches(body=rows[num_rows:], tail=rows[:0], cluster=cluster)

    def _name_array(self, epoch: int, shape: str) -> str:
        return f"{self.fingerprint}-epoch-{epoch}-{shape}"


def _cluster_of(world: World, global_batch_size: int) -> Cluster:
    if global_batch_size < 1 or global_batch_size % world.num_ranks:
        raise ConfigError(
            f"a global batch of {global_batch_size} cannot be divided evenly among {world.num_ranks} ranks, as"
            f" order='mosaic' needs: choose a multiple of {world.num_ranks}"
        )
    return Cluster(
        num_nodes=world.num_nodes, ranks_per_node=world.ranks_per_node, batch_size=global_batch_size // world.num_ranks
    )


def _without_empty(entries: IdArray) -> Int64Array:
    ids: Int64Array = entries[entries != EMPTY].astype(np.int64)
    return ids


def _take_fingerprint(streams: Sequence[WeightedStream], rules: MosaicRules) -> str:
    digest = hashlib.blake2s(digest_size=16)
    # The number of nodes that began a run bears on who is dealt what, not on the order itself.
    digest.update(repr(replace(rules, initial_nodes=None)).encode())
    for stream in streams:
        digest.update(repr(stream.share).encode())
        digest.update(stream.shards.sizes.tobytes())
    return digest.hexdigest()
