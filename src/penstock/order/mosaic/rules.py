"""The settings of a MosaicML-compatible order: as users give them, with every default worked out, and in its states."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from penstock.errors import ConfigError, UnknownAlgorithmError
from penstock.order.cursor import Cursor
from penstock.order.mosaic.partition import PARTITION_ALGORITHMS
from penstock.order.mosaic.shuffle import shuffle_algorithm
from penstock.order.plan import BATCHING_METHODS, BatchingMethod
from penstock.order.state_fields import COUNT, MOST, check_fields
from penstock.units import check_whole, parse_count

if TYPE_CHECKING:
    from collections.abc import Mapping

MosaicVersion = Literal["0.13", "0.5"]
SamplingMethod = Literal["balanced", "fixed"]

# What release 0.5.0 knew; everything else came later.
_ALGORITHMS_0_5 = ("naive", "py1b", "py1s", "py2s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MosaicOptions:
    """The arguments of a dataset that bear on its order, with the defaults of the release that is named.

    None stands for "as the release would choose"; `resolve` works it out.
    """

    mosaic_version: MosaicVersion = "0.13"
    epoch_size: int | float | str | None = None
    predownload: int | None = None
    sampling_method: SamplingMethod = "balanced"
    sampling_granularity: int = 1
    partition_algo: str | None = None
    num_canonical_nodes: int | None = None
    batch_size: int | None = None
    shuffle: bool = False
    shuffle_algo: str | None = None
    shuffle_seed: int = 9176
    shuffle_block_size: int | None = None
    batching_method: BatchingMethod = "random"
    replication: int | None = None

    def __post_init__(self) -> None:
        _check_one_of("mosaic_version", self.mosaic_version, get_args(MosaicVersion))
        _check_one_of("sampling_method", self.sampling_method, get_args(SamplingMethod))
        _check_one_of("batching_method", self.batching_method, BATCHING_METHODS)
        if self.partition_algo is not None:
            _check_one_of("partition_algo", self.partition_algo, PARTITION_ALGORITHMS, UnknownAlgorithmError)
        if self.shuffle_algo is not None:
            shuffle_algorithm(self.shuffle_algo)
        for name, least, value in (
            ("predownload", 0, self.predownload),
            ("sampling_granularity", 1, self.sampling_granularity),
            ("num_canonical_nodes", 1, self.num_canonical_nodes),
            ("batch_size", 1, self.batch_size),
            ("shuffle_seed", 0, self.shuffle_seed),
            ("shuffle_block_size", 0, self.shuffle_block_size),
        ):
            check_whole(name, value, least)
        if self.is_release_0_5:
            self._check_release_0_5()

    @property
    def is_release_0_5(self) -> bool:
        """Return whether the order follows the rules of release 0.5.0."""
        return self.mosaic_version == "0.5"

    @property
    def num_samples_per_epoch(self) -> int | None:
        """Return the `epoch_size` as a number, if it was given."""
        return None if self.epoch_size is None else parse_count(self.epoch_size)

    def resolve(self, num_nodes: int) -> MosaicRules:
        """Work out what was left open, for a run that begins on so many nodes."""
        algorithm = self.shuffle_algo or ("py1s" if self.is_release_0_5 else "py1e")
        has_many_nodes = self.is_release_0_5 or algorithm in ("py1s", "py2s")
        return MosaicRules(
            is_release_0_5=self.is_release_0_5,
            sampling_method=self.sampling_method,
            sampling_granularity=self.sampling_granularity,
            partition_algo=self.partition_algo or ("orig" if self.is_release_0_5 else "relaxed"),
            num_canonical_nodes=self.num_canonical_nodes or (64 * num_nodes if has_many_nodes else num_nodes),
            shuffle_algo=algorithm if self.shuffle else None,
            shuffle_seed=self.shuffle_seed,
            shuffle_block_size=self.shuffle_block_size,
            batching_method=self.batching_method,
        )

    def _check_release_0_5(self) -> None:
        if self.batching_method != "random":
            raise ConfigError(f"release 0.5 has no batching_method={self.batching_method!r}: use 'random'")
        if self.partition_algo == "relaxed":
            raise ConfigError("release 0.5 has no partition_algo='relaxed': use 'orig'")
        if self.shuffle_algo is not None:
            _check_one_of("shuffle_algo of release 0.5", self.shuffle_algo, _ALGORITHMS_0_5)
        if self.sampling_method != "balanced" or self.sampling_granularity != 1:
            raise ConfigError("release 0.5 has neither sampling_method nor sampling_granularity: leave them out")


@dataclass(frozen=True, slots=True, kw_only=True)
class MosaicRules:
    """All that decides the order besides the data, the epoch and the cluster; nothing is left open.

    `initial_nodes` is the number of nodes on which a resumed run began, None for a run that begins here.
    `shuffle_algo` is None for an epoch in sequence.
    """

    is_release_0_5: bool
    sampling_method: SamplingMethod
    sampling_granularity: int
    partition_algo: str
    num_canonical_nodes: int
    shuffle_algo: str | None
    shuffle_seed: int
    shuffle_block_size: int | None
    batching_method: BatchingMethod
    initial_nodes: int | None = None

    @property
    def draws_anew(self) -> bool:
        """Return whether each epoch draws other samples of each shard."""
        return self.shuffle_algo is not None and self.sampling_method == "balanced"

    @property
    def block_size(self) -> int:
        """Return the number of samples within which blockwise algorithms shuffle."""
        if self.shuffle_block_size is not None:
            return self.shuffle_block_size
        if self.is_release_0_5:
            return 1 << 18
        return max(4_000_000 // self.num_canonical_nodes, 1 << 18)


def _check_one_of(name: str, value: str, known: tuple[str, ...], kind: type[ConfigError] = ConfigError) -> None:
    if value not in known:
        raise kind(f"unknown {name} {value!r}: use one of {', '.join(known)}")


_REQUIRED = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")
_INITIAL_NODES = "initial_physical_nodes"
_MOST_NODES = 1 << 17  # an epoch takes memory for each
MOSAIC_FIELDS = {
    "epoch": range(-1, MOST),
    "sample_in_epoch": COUNT,
    "shuffle_seed": COUNT,
    "num_canonical_nodes": range(1, _MOST_NODES),
    f"{_INITIAL_NODES}?": range(1, _MOST_NODES),
    "pads_epochs?": bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MosaicState:
    """A place in a run, in the fields of MosaicML's `state_dict`.

    `sample_in_epoch` counts over all ranks. Release 0.5 has no `initial_physical_nodes`.
    """

    epoch: int
    sample_in_epoch: int
    num_canonical_nodes: int
    shuffle_seed: int
    initial_physical_nodes: int | None = None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> MosaicState:
        """Read what `to_dict`, or MosaicML's own `state_dict`, returned."""
        check_fields(fields, MOSAIC_FIELDS, "MosaicML Streaming")
        return cls(**{name: fields[name] for name in (*_REQUIRED, _INITIAL_NODES) if name in fields})

    def to_dict(self) -> dict[str, int]:
        """Return the state as MosaicML saves it."""
        fields = {name: int(getattr(self, name)) for name in _REQUIRED}
        if self.initial_physical_nodes is not None:
            fields[_INITIAL_NODES] = self.initial_physical_nodes
        return fields

    def adopt(self, rules: MosaicRules) -> MosaicRules:
        """Return the rules of the run that saved this state."""
        return replace(
            rules,
            num_canonical_nodes=self.num_canonical_nodes,
            shuffle_seed=self.shuffle_seed,
            initial_nodes=None if rules.is_release_0_5 else self.initial_physical_nodes,
        )


def with_mosaic_keys(state: dict[str, Any], initial_nodes: int) -> dict[str, Any]:
    """Return a state of an order of our own the keys that code written for MosaicML's reads, too."""
    if "sample_in_epoch" in state:
        return state
    return {
        **state,
        "sample_in_epoch": state["position"],
        "num_canonical_nodes": state["lanes"],
        "shuffle_seed": state["seed"],
        _INITIAL_NODES: initial_nodes,
    }


def resume_at(state: MosaicState | None, next_epoch: int) -> Cursor:
    """Return where a run about to begin `next_epoch` goes on: at the state, unless its epoch is older."""
    if state is None or state.epoch < next_epoch:
        return Cursor(next_epoch, 0)
    return Cursor(state.epoch, state.sample_in_epoch)
