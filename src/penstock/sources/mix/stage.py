"""The samples of a mix: feeds, each a source that is read again and again, and the stage that takes from them."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.blocks.block import Block
from penstock.blocks.stage import check_row, close, resume
from penstock.errors import EmptyDatasetError, MissingColumnError
from penstock.order.keys import hash_key, permutation
from penstock.order.quota import exact_shares
from penstock.order.state_fields import COUNT, MOST, check_fields, refuse
from penstock.sources.iterators import ShardsInTurn
from penstock.sources.mix.plan import (
    MIX_FIELDS,
    find_end,
    first_phase,
    make_phase,
    phase_at,
    phase_without,
    read_fractions,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.stage import State
    from penstock.sources.base import ShardedSource
    from penstock.sources.mix.plan import MixPhase, Segments
    from penstock.sources.mix.weights import WeightScheduler
    from penstock.types import Int64Array, Sample

SOURCE_FIELD = "__source__"
_FEED_FIELDS = {"epoch": COUNT, "given": COUNT, "samples?": dict}
_ROWS_AT_ONCE = 1024
_OWED = 10**9  # what is owed to sources when weights follow tokens is kept in this part of a sample


class Feed:
    """Gives the samples of a source, and its name in them, epoch after epoch; shards are shuffled after the first."""

    def __init__(self, name: str, source: ShardedSource, *, max_epochs: int | None, seed: int) -> None:
        self.name = name
        self._source, self._max_epochs, self._seed = source, max_epochs, seed
        self._epoch = 0
        self._given = 0  # in this epoch
        self._shards: ShardsInTurn | None = None
        self._rest = Block()  # rows that were read
        self._here: State = {"epoch": 0, "given": 0, "samples": None}  # after the sample given last

    @property
    def num_at_hand(self) -> int:
        """How many samples can be given without reading any."""
        return len(self._rest)

    def read(self) -> bool:
        """Have a sample at hand; return False if the source has given all that it may."""
        while not len(self._rest):
            if self._shards is None:
                self._shards = self._open()
            self._rest = self._shards.next()
            if len(self._rest):
                break
            if self._max_epochs is None and not self._given:
                raise EmptyDatasetError(f"source {self.name!r} of the mix has no samples: leave it out")
            if self._max_epochs is not None and self._epoch + 1 >= self._max_epochs:
                return False
            self.close()
            self._epoch, self._given, self._shards = self._epoch + 1, 0, None
        return True

    def take(self, count: int) -> tuple[list[Sample], PositionAfter]:
        """Return samples that are at hand, with where they come from; in copies if others may hold them."""
        rows, self._rest = self._rest.split(count)
        assert rows.after is not None  # noqa: S101
        after = partial(_in_epoch, rows.after, self._epoch, self._given)
        self._given += count
        self._here = after(count)
        if not self._source.makes_new_samples:
            return [{**sample, SOURCE_FIELD: self.name} for sample in rows.samples()], after
        for sample in rows.samples():
            sample[SOURCE_FIELD] = self.name
        return rows.samples(), after

    def total(self) -> int | None:
        """Count all samples that the source may give; None if that is not known, or without end."""
        lengths = self._source.shard_lengths()
        return None if lengths is None or self._max_epochs is None else sum(lengths) * self._max_epochs

    @property
    def can_seek(self) -> bool:
        """Whether any place is found without reading what comes before it."""
        return self._source.shard_lengths() is not None

    def seek(self, count: int) -> None:
        """Go to where so many samples have been given."""
        lengths = self._source.shard_lengths() or []
        size = sum(lengths)
        if not count or not size:
            return
        self._epoch, rest = divmod(count - 1, size)  # the end of an epoch belongs to it
        self._given = rest + 1
        order = self._order()
        ends = list(accumulate(lengths if order is None else [lengths[number] for number in order]))
        first = bisect_right(ends, self._given)
        self._shards = ShardsInTurn(self._source, order, first, self._given - (ends[first - 1] if first else 0))
        self._here = {"epoch": self._epoch, "given": self._given, "samples": self._shards.get_state()}

    def close(self) -> None:
        """Close what is open."""
        close(self._shards)

    def get_state(self) -> State:
        """Describe where the source is."""
        return self._here

    def set_state(self, state: Mapping[str, object]) -> None:
        """Go to where a state says."""
        known = check_fields(state, _FEED_FIELDS, f"source {self.name!r} of a mix")
        epoch, inner = known["epoch"], known.get("samples")
        if epoch >= (MOST if self._max_epochs is None else max(1, self._max_epochs)):
            raise refuse("epoch", epoch, f"one of the {self._max_epochs} epochs of {self.name!r}")
        self.close()
        # Where samples were begun there are some, whatever a damaged state says: the source is not taken for empty.
        self._epoch, self._given, self._shards = epoch, max(known["given"], inner is not None), None
        self._rest, self._here = Block(), known
        if inner is not None:
            self._shards = self._open()
            self._rest = resume(self._shards, inner)

    def _open(self) -> ShardsInTurn:
        return ShardsInTurn(self._source, self._order())

    def _order(self) -> list[int] | None:
        if self._epoch == 0:
            return None
        key = hash_key("mix", self._seed, self.name, self._epoch)
        shards: list[int] = permutation(key, self._source.num_shards).tolist()
        return shards


def _in_epoch(after: PositionAfter, epoch: int, before: int, given: int) -> State:
    return {"epoch": epoch, "given": before + given, "samples": after(given)}


class ByTokens(NamedTuple):
    """Weights that follow the tokens of the mix so far; they stay the same within a block of samples."""

    scheduler: WeightScheduler
    field: str
    block_size: int


class MixedStage:
    """Samples of several feeds in turn. The position is the number of the sample, and where each feed is."""

    def __init__(
        self,
        feeds: Sequence[Feed],
        segments: Segments,
        *,
        seed: int,
        stops_at_first: bool,
        by_tokens: ByTokens | None = None,
    ) -> None:
        self._feeds, self._segments, self._seed = feeds, segments, seed
        self._stops_at_first = stops_at_first
        self._at = 0
        self._taken = np.zeros(len(feeds), np.int64)  # of each feed
        self._phase: MixPhase | None = first_phase(segments, seed)  # None: the end
        self._labels = np.empty(0, np.int64)  # of the next samples, as far as they were computed
        self._by_tokens = by_tokens
        self._tokens = 0
        self._owed = [Fraction(0)] * len(feeds)  # to each feed where the phase began, if weights follow tokens

    def seek(self, row: int) -> bool:
        """Go to a sample by arithmetic; tells whether that is possible. A row beyond the end is an error."""
        if not row:
            return True
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
        self._phase, self._at = phase, check_row("mixed", row, None)
        self._taken = np.array(phase.taken(row), np.int64)
        for feed, count in zip(self._feeds, self._taken.tolist(), strict=True):
            feed.seek(count)
        return True

    def close(self) -> None:
        """Close all feeds."""
        for feed in self._feeds:
            feed.close()

    def next(self) -> Block:
        """Take the next samples of all sources, by turns: those that are at hand once the first of them is."""
        start = self._place()
        while (phase := self._phase) is not None:
            if not len(self._labels):
                count = _ROWS_AT_ONCE
                if self._by_tokens is not None:
                    phase = self._phase = self._follow_tokens(phase, self._by_tokens)
                    if phase is None:
                        break
                    count = min(count, self._by_tokens.block_size - self._at % self._by_tokens.block_size)
                self._labels = phase.labels(self._at, count)
            first = int(self._labels[0])
            if self._feeds[first].read():
                return self._take(start, self._num_at_hand())
            self._leave(phase, first)
        return Block()

    def _num_at_hand(self) -> int:
        """Count the first labels whose samples are there without a feed having to read or coming to an end."""
        labels = self._labels
        count = len(labels)
        for source, needed in enumerate(np.bincount(labels, minlength=len(self._feeds)).tolist()):
            at_hand = self._feeds[source].num_at_hand
            if needed > at_hand:
                count = min(count, int(np.flatnonzero(labels == source)[at_hand]))
        return count

    def _take(self, start: _Place, count: int) -> Block:
        labels, self._labels = self._labels[:count], self._labels[count:]
        place = start._replace(phase=self._phase, weights=self._segments[0][1], owed=self._owed)
        taken: list[Sample] = []
        moving: dict[int, PositionAfter] = {}
        counts = np.bincount(labels, minlength=len(self._feeds))
        for source, needed in enumerate(counts.tolist()):
            if needed:
                samples, moving[source] = self._feeds[source].take(needed)
                taken += samples
        places = np.empty(count, np.int64)  # of each sample among those taken, which are in order of their labels
        places[np.argsort(labels, kind="stable")] = np.arange(count)
        samples = list(map(taken.__getitem__, places.tolist()))
        tokens = None
        if self._by_tokens is not None:
            each = (_count_tokens(sample, self._by_tokens.field) for sample in samples)
            tokens = list(accumulate(each, initial=self._tokens))
            self._tokens = tokens[-1]
        self._at, self._taken = self._at + count, self._taken + counts
        return Block(samples, after=partial(_after_samples, start, place, labels, moving, tokens))

    def _leave(self, phase: MixPhase, source: int) -> None:
        self._labels = self._labels[:0]
        self._owed = [Fraction(0)] * len(self._feeds)
        self._phase = (
            None if self._stops_at_first else phase_without(phase, self._segments, self._at, source, self._seed)
        )

    def _follow_tokens(self, phase: MixPhase, by: ByTokens) -> MixPhase | None:
        """Where a block begins, mix by the weights that the tokens so far call for; what is owed is not forgotten."""
        if self._at % by.block_size or self._at == phase.start:
            return phase
        taken, passed = self._taken.tolist(), self._at - phase.start
        shares = dict(zip(phase.sources, exact_shares([self._segments[0][1][s] for s in phase.sources]), strict=True))
        owed = list(self._owed)
        for source in phase.sources:
            due = owed[source] + passed * shares[source] - (taken[source] - phase.before[source])
            owed[source] = Fraction(round(due * _OWED), _OWED)
        self._owed = owed
        self._segments = [(0, by.scheduler.shares(self._tokens, [feed.name for feed in self._feeds]))]
        return make_phase(self._segments, self._at, phase.sources, taken, self._seed, owed)

    def _place(self) -> _Place:
        feeds = {feed.name: feed.get_state() for feed in self._feeds}
        tokens = None if self._by_tokens is None else self._tokens
        return _Place(self._at, self._taken, feeds, self._phase, tokens, self._segments[0][1], self._owed)

    def get_state(self) -> State:
        """Return the number of the next sample, and where the feeds are."""
        return self._place().state()

    def set_state(self, state: State) -> None:
        """Go to a sample."""
        check_fields(state, MIX_FIELDS, "an iterator over a mix")
        names = [feed.name for feed in self._feeds]
        self._labels = self._labels[:0]
        self._at, phase = state["at"], state.get("phase")
        if set(state["feeds"]) != set(names):
            raise refuse("feeds", sorted(state["feeds"]), f"the sources {', '.join(names)}")
        if self._by_tokens is not None and phase is not None:
            self._tokens, self._owed = state.get("tokens") or 0, read_fractions(state, "owed", len(names))
            self._segments = [(0, tuple(read_fractions(state, "weights", len(names))))]
        owed = None if self._by_tokens is None else self._owed
        self._phase = None if phase is None else phase_at(self._at, phase, self._segments, names, self._seed, owed)
        self._taken = np.array([0] * len(names) if self._phase is None else self._phase.taken(self._at), np.int64)
        for feed in self._feeds:
            feed.set_state(state["feeds"][feed.name])


class _Place(NamedTuple):
    """A position in a mix, from which others follow."""

    at: int
    taken: Int64Array  # of each feed before
    feeds: Mapping[str, State]
    phase: MixPhase | None
    tokens: int | None  # None: weights do not follow them
    weights: Sequence[Fraction]
    owed: Sequence[Fraction]

    def state(self) -> State:
        """Describe it as plain values."""
        phase, names = self.phase, list(self.feeds)
        state: State = {"at": self.at, "feeds": dict(self.feeds)}
        if phase is None:
            return {**state, "phase": None}
        taken = self.taken.tolist()
        state["phase"] = {
            "start": phase.start,
            "sources": [names[source] for source in phase.sources],
            "before": list(phase.before),
            "taken": [taken[source] - phase.before[source] for source in phase.sources],
        }
        if self.tokens is not None:
            told = {"weights": [str(share) for share in self.weights], "owed": [str(each) for each in self.owed]}
            state |= {"tokens": self.tokens, **told}
        return state


def _after_samples(
    start: _Place,
    place: _Place,
    labels: Int64Array,
    moving: Mapping[int, PositionAfter],
    tokens: Sequence[int] | None,
    given: int,
) -> State:
    """Describe the position after so many samples with these labels; at first, no feed is at its next epoch."""
    if not given:
        return start.state()
    names = list(place.feeds)
    counts = np.bincount(labels[:given], minlength=len(names))
    feeds = {names[source]: after(int(counts[source])) for source, after in moving.items() if counts[source]}
    moved = place._replace(at=place.at + given, taken=place.taken + counts, feeds={**place.feeds, **feeds})
    return (moved if tokens is None else moved._replace(tokens=tokens[given])).state()


def _count_tokens(sample: Sample, field: str) -> int:
    try:
        return len(sample[field])
    except (KeyError, TypeError):
        raise MissingColumnError(
            f"the weights depend on tokens, but a sample has no list of them in {field!r}: tokenize before mixing, or"
            " let the scheduler count samples"
        ) from None
