"""The settings of a MosaicML-compatible order: as the user gives them, and with every default worked out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from penstock.errors import ConfigError, UnknownAlgorithmError
from penstock.order.batching import BATCHING_METHODS, BatchingMethod
from penstock.order.mosaic.partition import PARTITION_ALGORITHMS
from penstock.order.mosaic.shuffle import shuffle_algorithm
from penstock.units import check_whole, parse_count

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
