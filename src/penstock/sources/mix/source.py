"""`MixedShardedSource`: several sources, each giving its exact share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, get_args

from penstock.blocks.stage import open_at_row
from penstock.errors import ConfigError
from penstock.order.keys import hash_key
from penstock.order.quota import exact_shares
from penstock.sources.base import ShardedSource, as_source
from penstock.sources.mix.stage import ByTokens, Feed, MixedStage, find_end, first_phase
from penstock.units import check_whole, checks_making

if TYPE_CHECKING:
    from penstock.blocks.stage import OpenStage
    from penstock.sources.base import GivesSource
    from penstock.sources.mix.stage import Segments
    from penstock.sources.mix.weights import WeightScheduler

StopStrategy = Literal["restart", "first_exhausted", "all_exhausted"]


@checks_making
class MixedShardedSource(ShardedSource):
    """Several sources, mixed by weights: among the first n samples, each has its share of n, off by less than one.

    That holds for every n and any weights; with `all_exhausted`, counted again once a source has ended. Samples get the
    name of their source as `__source__`. It has one shard, `mixed`, which opens at any row without reading what comes
    before it if all sources know their lengths.

    Args:
        sources: The sources by name.
        weights: Their weights by name, which need not add up to 1; by default all the same.
        block_size: With weights that change gradually, or with tokens: for how many samples they stay the same.
        seed: Decides between sources that could equally well be next, and the order of shards from the second epoch
            of a source on.
        stop_strategy: `"restart"` reads a source again when it ends, and never ends itself; `"first_exhausted"` ends
            when it is the turn of a source that has nothing left; `"all_exhausted"` goes on without that source until
            none is left, so that every sample comes once.
        weight_scheduler: Weights that change in the course of the run, instead of `weights`.
        epochs: How often a source is read at most, for all or by name. By default once, or with `"restart"` without
            end. With `"restart"`, a source that has been read so often leaves.
        token_field: Where tokens are counted, if the scheduler counts them.
    """

    def __init__(
        self,
        sources: Mapping[str, ShardedSource | GivesSource],
        weights: Mapping[str, float] | None = None,
        block_size: int = 1000,
        seed: int | None = None,
        stop_strategy: StopStrategy = "restart",
        weight_scheduler: WeightScheduler | None = None,
        *,
        epochs: int | Mapping[str, int | None] | None = None,
        token_field: str = "input_ids",  # noqa: S107
    ) -> None:
        if not isinstance(sources, Mapping) or not sources:
            raise ConfigError("sources= must be a dict of names and sources, with at least one")
        if stop_strategy not in get_args(StopStrategy):
            raise ConfigError(f"stop_strategy={stop_strategy!r} is unknown: use {', '.join(get_args(StopStrategy))}")
        check_whole("block_size", block_size, 1)
        self._sources, self._names = {name: as_source(each) for name, each in sources.items()}, list(sources)
        self._input_sources = list(self._sources.values())
        self._seed, self._stop = int(seed or 0), stop_strategy
        self._block_size = block_size
        self._scheduler = weight_scheduler
        self._epochs = self._read_epochs(epochs)
        if weight_scheduler is not None:
            if weights is not None:
                raise ConfigError("pass weights= or weight_scheduler=, not both")
            _check_names(weight_scheduler.names, self._names)
        if weights is not None:
            if not isinstance(weights, Mapping):
                raise ConfigError(f"weights={weights!r:.80} is no dict: give each source its weight by name")
            _check_names(weights, self._names)
        self._by_tokens: ByTokens | None = None
        if weight_scheduler is not None and weight_scheduler.unit == "tokens":
            self._by_tokens = ByTokens(weight_scheduler, token_field, block_size)
        self._segments = self._make_segments(weights)

    @property
    def shard_names(self) -> Sequence[str]:
        """The name of the one shard."""
        return ("mixed",)

    @property
    def order_fingerprint(self) -> str | None:
        """A hash of all sources and settings."""
        each = [source.order_fingerprint for source in self._sources.values()]
        if None in each:
            return None
        points = [] if self._scheduler is None else [repr(point) for point in self._scheduler.points]
        settings = repr((self._names, self._segments, points, self._seed, self._stop, self._epochs, self._block_size))
        return f"mixed-{hash_key(*map(str, each), settings):016x}"

    @property
    def is_endless(self) -> bool:
        """Whether a source with a weight is read again and again."""
        return any(self._epochs[name] is None or source.is_endless for name, source in self._sources.items())

    def shard_lengths(self) -> list[int] | None:
        """Return the number of samples if it can be computed: all sources know theirs, and the mix ends."""
        feeds = self._feeds()
        totals = [feed.total() for feed in feeds]
        is_known = all(feed.can_seek for feed in feeds)
        if not is_known or self._by_tokens is not None or len(self._segments) > 1:
            return None
        if self._stop == "first_exhausted":
            phase = first_phase(self._segments, self._seed)
            end = None if phase is None else find_end(phase, totals)
            return None if end is None else [end[0]]
        if None in totals:
            return None
        shares = self._segments[0][1]
        return [sum(total or 0 for total, share in zip(totals, shares, strict=True) if share)]

    @property
    def num_parts(self) -> int:
        """How many parts there can be, each mixed by itself; only one if weights change in the course of the run."""
        return 1 if self._scheduler is not None else min(source.num_parts for source in self._sources.values())

    def part(self, number: int, num_parts: int) -> ShardedSource:
        """Return a mix of parts of all sources."""
        made = copy(self)
        made._sources = {name: source.part(number, num_parts) for name, source in self._sources.items()}
        made._input_sources = list(made._sources.values())
        return made

    def open_stage(self, shard_name: str, row: int = 0) -> OpenStage:
        """Open the mix at one of its samples."""
        stage = MixedStage(
            self._feeds(),
            self._segments,
            seed=self._seed,
            stops_at_first=self._stop == "first_exhausted",
            by_tokens=self._by_tokens,
        )
        return stage if stage.seek(row) else open_at_row(stage, shard_name, row)

    def _feeds(self) -> list[Feed]:
        return [
            Feed(name, source, max_epochs=self._epochs[name], seed=self._seed) for name, source in self._sources.items()
        ]

    def _read_epochs(self, epochs: int | Mapping[str, int | None] | None) -> dict[str, int | None]:
        default = None if self._stop == "restart" else 1
        if isinstance(epochs, Mapping):
            _check_names(epochs, self._names, are_all_needed=False)
            by_name = {name: epochs.get(name, default) for name in self._names}
        else:
            by_name = dict.fromkeys(self._names, default if epochs is None else epochs)
        for name, count in by_name.items():
            check_whole(f"epochs of {name!r}", count, 1)
        return by_name

    def _make_segments(self, weights: Mapping[str, float] | None) -> Segments:
        if self._scheduler is None:
            given = [1 if weights is None else weights[name] for name in self._names]
            return [(0, exact_shares(given))]
        if self._by_tokens is not None:
            return [(0, self._scheduler.shares(0, self._names))]
        return self._scheduler.segments(self._names, self._block_size)


def _check_names(given: Any, names: Sequence[str], *, are_all_needed: bool = True) -> None:
    unknown, missing = sorted(set(given) - set(names)), sorted(set(names) - set(given))
    if unknown or (missing and are_all_needed):
        raise ConfigError(
            f"the names do not match the sources {', '.join(names)}:"
            + (f" {', '.join(unknown)} unknown" if unknown else "")
            + (f" {', '.join(missing)} missing" if missing and are_all_needed else "")
        )
