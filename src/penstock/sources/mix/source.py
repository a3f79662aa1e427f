"""`MixedShardedSource`: several sources, each giving its exact share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from penstock.blocks.block import Block
from penstock.blocks.stage import State, check_row, count_after
from penstock.errors import ConfigError, EmptyDatasetError, MissingColumnError
from penstock.order.keys import hash_key
from penstock.order.quota import exact_shares
from penstock.order.state_fields import refuse
from penstock.sources.base import ShardedSource, as_source
from penstock.sources.iterators import SampleIterator
from penstock.sources.mix.feeds import Feed
from penstock.sources.mix.plan import (
    MIX_FIELDS,
    find_end,
    first_phase,
    make_phase,
    phase_at,
    phase_without,
    read_fractions,
)
from penstock.units import check_whole

if TYPE_CHECKING:
    from penstock.order.state_fields import Fields
    from penstock.sources.base import GivesSource
    from penstock.sources.mix.plan import MixPhase, Segments
    from penstock.sources.mix.weights import WeightScheduler
    from penstock.types import Int64Array, Sample

StopStrategy = Literal["restart", "first_exhausted", "all_exhausted"]

_SAMPLES_AT_ONCE, _BLOCK = 1024, 1024
_OWED = 10**9  # what is owed to sources when weights follow tokens is kept in this part of a sample


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
            nobody is left, so that every sample comes once.
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
        self._block_size, self._token_field = block_size, token_field
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
        self._by_tokens = weight_scheduler is not None and weight_scheduler.unit == "tokens"
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
        if not is_known or self._by_tokens or len(self._segments) > 1:
            return None
        if self._stop == "first_exhausted":
            phase = first_phase(self._segments, self._seed)
            end = None if phase is None else find_end(phase, totals)
            return None if end is None else [end[0]]
        if None in totals:
            return None
        shares = self._segments[0][1]
        return [sum(total or 0 for total, share in zip(totals, shares, strict=True) if share)]

    def open_shard_at_row(self, shard_name: str, row: int = 0) -> MixedIterator:
        """Open the mix at one of its samples."""
        self.shard_number(shard_name)
        samples = self._open()
        if row and not samples.seek(row):
            skipped = samples.skip(row)
            check_row(shard_name, row, row if skipped == row else skipped)
        row = check_row(shard_name, row, None)
        return samples

    def close(self) -> None:
        """Close all sources."""
        for source in self._sources.values():
            source.close()

    def _open(self) -> MixedIterator:
        scheduler = self._scheduler if self._by_tokens else None
        return MixedIterator(
            self._feeds(),
            self._segments,
            seed=self._seed,
            stops_at_first=self._stop == "first_exhausted",
            by_tokens=None if scheduler is None else (scheduler, self._token_field, self._block_size),
        )

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
        if self._by_tokens:
            return [(0, self._scheduler.shares(0, self._names))]
        return self._scheduler.segments(self._names, self._block_size)


class MixedIterator(SampleIterator):
    """Samples of several feeds in turn. The position is the number of the sample, and where each feed is."""

    state_fields: ClassVar[Fields] = {**MIX_FIELDS, "given?": range(_BLOCK + 1)}
    most_chunks_given = _BLOCK

    def __init__(
        self,
        feeds: Sequence[Feed],
        segments: Segments,
        *,
        seed: int,
        stops_at_first: bool,
        by_tokens: tuple[WeightScheduler, str, int] | None = None,
    ) -> None:
        super().__init__()
        self._feeds, self._segments, self._seed = feeds, segments, seed
        self._stops_at_first = stops_at_first
        self._at = 0
        self._phase: MixPhase | None = first_phase(segments, seed)  # None: the end
        self._by_tokens = by_tokens
        self._tokens = 0
        self._owed = [Fraction(0)] * len(feeds)  # to each feed where the phase began, if weights follow tokens
        # How many samples a chunk has depends on what was at hand. So states count from where a block began, and all
        # blocks are equally long.
        self._block_start: State = {}
        self._since = 0  # samples of the block that were read

    def seek(self, row: int) -> bool:
        """Go to a sample by arithmetic; tells whether that is possible. A row beyond the end is an error."""
        if self._by_tokens is not None or not all(feed.can_seek for feed in self._feeds):
            return False
        totals = [feed.total() for feed in self._feeds]
        if len(self._segments) > 1 and any(total is not None for total in totals):
            return False
        phase: MixPhase | None = self._phase
        while phase is not None and (end := find_end(phase, totals)) is not None and end[0] < row:
            if self._stops_at_first:
                check_row("mixed", row, end[0])
            following = phase_without(phase, self._segments, end[0], end[1], self._seed)
            if following is None:
                check_row("mixed", row, end[0])
            phase = following
        assert phase is not None  # noqa: S101  a mix begins with a phase, and its end is an error above
        self._phase, self._at = phase, row
        for feed, count in zip(self._feeds, phase.taken(row), strict=True):
            feed.seek(count)
        return True

    def close(self) -> None:
        """Close all feeds."""
        for feed in self._feeds:
            feed.close()

    def next(self) -> Block:
        """Take the next samples of all sources, by turns."""
        if self._since in (0, _BLOCK):
            self._block_start, self._since = self._here(), 0
        before, most = self._since, _BLOCK - self._since
        made: list[Sample] = []
        while self._phase is not None and len(made) < most:
            if self._by_tokens is not None:
                if made:
                    break
                self._follow_tokens(*self._by_tokens)
            labels = self._phase.labels(self._at, min(most - len(made), self._num_at_once()))
            if made and self._num_at_hand(labels) < len(labels):
                break  # what there is is given before anything is read
            try:
                self._take(labels, made)
            except EmptyDatasetError:
                raise
            except Exception as error:
                if not made:
                    raise
                self._failure = error  # raised after what came before it
                break
        self._since += len(made)
        return Block(made, after=partial(_count_more, self._block_start, before))

    def _take(self, labels: Int64Array, made: list[Sample]) -> None:
        """Add the samples that labels name, many at a time if they are at hand, up to where a source ends."""
        phase = self._phase
        while len(labels) and self._phase is phase:
            count = 0 if self._by_tokens is not None else self._num_at_hand(labels)
            if count:
                made += self._take_at_hand(labels[:count])
            else:
                count = len(labels) if self._by_tokens is not None else 1
                for source in labels[:count].tolist():
                    sample = self._feeds[source].next()
                    if sample is None:
                        self._leave(source)
                        break
                    if self._by_tokens is not None:
                        self._tokens += _count_tokens(sample, self._by_tokens[1])
                    made.append(sample)
                    self._at += 1
            labels = labels[count:]

    def _num_at_hand(self, labels: Int64Array) -> int:
        """Count the first labels whose samples are there without a feed having to read or coming to an end."""
        count = len(labels)
        for source, needed in enumerate(np.bincount(labels, minlength=len(self._feeds)).tolist()):
            at_hand = self._feeds[source].num_at_hand
            if needed > at_hand:
                count = min(count, int(np.flatnonzero(labels == source)[at_hand]))
        return count

    def _take_at_hand(self, labels: Int64Array) -> list[Sample]:
        counts = np.bincount(labels, minlength=len(self._feeds)).tolist()
        taken: list[Sample] = []
        for feed, count in zip(self._feeds, counts, strict=True):
            taken += feed.take(count)
        self._at += len(labels)
        places = np.empty(len(labels), np.int64)  # of each sample among those taken, which are in order of their labels
        places[np.argsort(labels, kind="stable")] = np.arange(len(labels))
        return list(map(taken.__getitem__, places.tolist()))

    def _num_at_once(self) -> int:
        if self._by_tokens is None:
            return _SAMPLES_AT_ONCE
        return min(_SAMPLES_AT_ONCE, self._by_tokens[2] - self._at % self._by_tokens[2])

    def _leave(self, source: int) -> None:
        if self._stops_at_first or self._phase is None:
            self._phase = None
            return
        self._phase = phase_without(self._phase, self._segments, self._at, source, self._seed)
        self._owed = [Fraction(0)] * len(self._feeds)

    def _follow_tokens(self, scheduler: WeightScheduler, _: str, block_size: int) -> None:
        """Where a block begins, mix by the weights that the tokens so far call for; what is owed is not forgotten."""
        phase = self._phase
        if phase is None or self._at % block_size or self._at == phase.start:
            return
        taken, passed = phase.taken(self._at), self._at - phase.start
        shares = dict(zip(phase.sources, exact_shares([self._segments[0][1][s] for s in phase.sources]), strict=True))
        for source in phase.sources:
            due = self._owed[source] + passed * shares[source] - (taken[source] - phase.before[source])
            self._owed[source] = Fraction(round(due * _OWED), _OWED)
        self._segments = [(0, scheduler.shares(self._tokens, [feed.name for feed in self._feeds]))]
        self._phase = make_phase(self._segments, self._at, phase.sources, taken, self._seed, self._owed)

    def get_state(self) -> State:
        """Return where a block of the mix begins, and how many of its samples were given."""
        return self._here() if self._since in (0, _BLOCK) else count_after(self._block_start, self._since)

    def _here(self) -> State:
        phase = self._phase
        state: State = {"at": self._at, "feeds": {feed.name: feed.state_dict() for feed in self._feeds}}
        if phase is None:
            return {**state, "phase": None}
        taken = phase.taken(self._at)
        state["phase"] = {
            "start": phase.start,
            "sources": [self._feeds[source].name for source in phase.sources],
            "before": list(phase.before),
            "taken": [taken[source] - phase.before[source] for source in phase.sources],
        }
        if self._by_tokens is not None:
            state |= {
                "tokens": self._tokens,
                "weights": [str(share) for share in self._segments[0][1]],
                "owed": [str(each) for each in self._owed],
            }
        return state

    def set_state(self, state: State) -> None:
        """Go to where a block of the mix began."""
        names = [feed.name for feed in self._feeds]
        self._since, self._at, phase = 0, state["at"], state.get("phase")
        if set(state["feeds"]) != set(names):
            raise refuse("feeds", sorted(state["feeds"]), f"the sources {', '.join(names)}")
        if self._by_tokens is not None and phase is not None:
            self._tokens, self._owed = state.get("tokens") or 0, read_fractions(state, "owed", len(names))
            self._segments = [(0, tuple(read_fractions(state, "weights", len(names))))]
        owed = None if self._by_tokens is None else self._owed
        self._phase = None if phase is None else phase_at(self._at, phase, self._segments, names, self._seed, owed)
        for feed in self._feeds:
            feed.load_state_dict(state["feeds"][feed.name])


def _count_more(start: State, before: int, given: int) -> State:
    return count_after(start, before + given)


def _count_tokens(sample: Sample, field: str) -> int:
    try:
        return len(sample[field])
    except (KeyError, TypeError):
        raise MissingColumnError(
            f"the weights depend on tokens, but a sample has no list of them in {field!r}: tokenize before mixing, or"
            " let the scheduler count samples"
        ) from None


def _check_names(given: Any, names: Sequence[str], *, are_all_needed: bool = True) -> None:
    unknown, missing = sorted(set(given) - set(names)), sorted(set(names) - set(given))
    if unknown or (missing and are_all_needed):
        raise ConfigError(
            f"the names do not match the sources {', '.join(names)}:"
            + (f" {', '.join(unknown)} unknown" if unknown else "")
            + (f" {', '.join(missing)} missing" if missing and are_all_needed else "")
        )
