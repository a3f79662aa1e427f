"""MosaicML-compatible orders behind the same questions as the native one."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from penstock.errors import ConfigError
from penstock.order.mosaic.batching import rows_by_method
from penstock.order.mosaic.epoch import WeightedStream, list_ids
from penstock.order.mosaic.ids import IdArray
from penstock.order.mosaic.partition import Cluster, EpochBatches, check_dropped, deal, dealing_cluster
from penstock.order.mosaic.sampling import lay_shards
from penstock.order.mosaic.weights import StreamWeight, share_out

if TYPE_CHECKING:
    from penstock.order.mosaic.rules import MosaicOptions, MosaicRules
    from penstock.order.mosaic.state import MosaicState

# Given a name and how to compute it, returns the array of that name; may keep it, in memory or in a file.
ComputeOnce: TypeAlias = Callable[[str, Callable[[], IdArray]], IdArray]


class KeepLast:
    """Keeps the array asked for last: enough for one process, which goes through one epoch at a time."""

    def __init__(self) -> None:
        self._name = ""
        self._array: IdArray | None = None

    def __call__(self, name: str, compute: Callable[[], IdArray]) -> IdArray:
        """Return the array of that name, computing it unless it is the last one."""
        if self._array is None or name != self._name:
            self._array = None  # two epochs at once would double the memory
            self._array = compute()
            self._name = name
        return self._array


@dataclass(frozen=True, slots=True, kw_only=True)
class MosaicPlan:
    """Answers who gets which samples, in the order that MosaicML Streaming would have used.

    An epoch is computed once, as one array of ids that serves every place in the epoch; what depends on the
    place and, with batching method `random`, on the cluster is arithmetic on top of it.
    """

    streams: tuple[WeightedStream, ...]
    rules: MosaicRules
    compute_once: ComputeOnce = field(default_factory=KeepLast, compare=False)
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", _take_fingerprint(self.streams, self.rules))

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
        if not shard_sizes or not any(map(sum, shard_sizes)):
            raise ConfigError("there is no sample to plan for: give at least one stream that is not empty")
        laid = lay_shards(shard_sizes)
        shares = share_out(
            [shards.num_samples for shards in laid],
            weights or [StreamWeight()] * len(laid),
            epoch_size=options.num_samples_per_epoch,
            seed=options.shuffle_seed,
            may_cut_unweighted=not options.is_release_0_5,
        )
        rules = options.settle(num_nodes)
        return cls(
            streams=tuple(
                WeightedStream(shards=shards, share=share) for shards, share in zip(laid, shares, strict=True)
            ),
            rules=rules if state is None else state.adopt(rules),
            compute_once=compute_once or KeepLast(),
        )

    @property
    def epoch_size(self) -> int:
        """Return the number of samples of an epoch, without the repeats that make ranks equal."""
        return sum(stream.share.choose for stream in self.streams)

    def epoch_batches(self, epoch: int, num_dropped: int, cluster: Cluster) -> EpochBatches:
        """Deal what is left of an epoch, after so many samples over all ranks, to a cluster."""
        if self.rules.batching_method == "random":
            return self._deal_epoch(epoch, num_dropped, cluster)
        return self._cut_rows(epoch, num_dropped, cluster)

    def _deal_epoch(self, epoch: int, num_dropped: int, cluster: Cluster) -> EpochBatches:
        rules = self.rules
        check_dropped(self.epoch_size, num_dropped, cluster.num_ranks)
        dealing = dealing_cluster(
            rules.partition_algo, rules.num_canonical_nodes, cluster, rules.initial_nodes
        )
        # Up to the number of canonical nodes, all numbers of nodes are dealt the same list.
        num_nodes = max(dealing.num_nodes, rules.num_canonical_nodes)
        listed = self.compute_once(
            self._name_array(epoch, f"nodes={num_nodes}"),
            lambda: list_ids(
                self.streams, rules, epoch, num_nodes=dealing.num_nodes, block_size=rules.block_size
            ),
        )
        return deal(listed, num_dropped, dealing, cluster, is_release_0_5=rules.is_release_0_5)

    def _cut_rows(self, epoch: int, num_dropped: int, cluster: Cluster) -> EpochBatches:
        rows = self.compute_once(
            self._name_array(epoch, f"{cluster}-began={self.rules.initial_nodes}"),
            lambda: rows_by_method(self.rules.batching_method)(self.streams, self.rules, epoch, cluster),
        )
        num_rows, rest = divmod(num_dropped, cluster.global_batch_size)
        if rest:
            warnings.warn(
                f"resuming after {num_dropped} samples, not a multiple of the global batch of "
                f"{cluster.global_batch_size}: {rest} samples are seen again",
                stacklevel=3,
            )
        grid = rows.reshape(-1, cluster.num_nodes, cluster.ranks_per_node, cluster.batch_size)
        return EpochBatches(body=grid[num_rows:], tail=grid[:0], cluster=cluster)

    def _name_array(self, epoch: int, shape: str) -> str:
        return f"{self.fingerprint}-epoch={epoch}-{shape}"


def _take_fingerprint(streams: Sequence[WeightedStream], rules: MosaicRules) -> str:
    digest = hashlib.blake2s(digest_size=16)
    # The number of nodes that began a run bears on who is dealt what, not on the order itself.
    digest.update(repr(replace(rules, initial_nodes=None)).encode())
    for stream in streams:
        digest.update(repr(stream.share).encode())
        digest.update(stream.shards.sizes.tobytes())
    return digest.hexdigest()
