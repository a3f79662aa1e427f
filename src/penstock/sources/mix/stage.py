"""The samples of a mix: which source is next, by arithmetic; the sources, each read again and again; and the stage."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.blocks.block import Block
from penstock.blocks.stage import check_row, resume
from penstock.errors import EmptyDatasetError, MissingColumnError
from penstock.order.keys import hash_key, permutation
from penstock.order.quota import QuotaMix, exact_shares
from penstock.order.state_fields import COUNT, MOST, check_fields, refuse
from penstock.outside_text import Bounded
from penstock.sources.iterators import ShardsInTurn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.stage import Position, State
    from penstock.sources.base import ShardedSource
    from penstock.sources.mix.weights import WeightScheduler
    from penstock.types import Int64Array, Sample

    Segments = Sequence[tuple[int, tuple[Fraction, ...]]]

_PHASE = {"start": COUNT, "sources": [str], "before": [COUNT], "taken": [COUNT]}
MIX_FIELDS = {"at": COUNT, "feeds": {str: dict}, "phase?": _PHASE, "tokens?": COUNT, "weights?": [str], "owed?": [str]}
_FRACTION = Bounded(r"-?[0-9]{1,100}(/[1-9][0-9]{0,99})?", 202)


@dataclass(frozen=True, slots=True)
class MixPhase:
    """From where on a mix consists of which sources; what each had given before; and the mix itself."""

    start: int
    sources: tuple[int, ...]
    before: tuple[int, ...]  # of all sources, also of those that have left
    mix: QuotaMix

    def labels(self, position: int, count: int) -> Int64Array:
        """Return the source of each of some positions in a row."""
        labels = self.mix.labels(position - self.start, count)
        return labels if len(self.sources) == len(self.before) else _as_array(self.sources)[labels]

    def taken(self, position: int) -> list[int]:
        """Count what each source has given before a position."""
        taken = list(self.before)
        for source, count in zip(self.sources, self.mix.taken(position - self.start), strict=True):
            taken[source] += count
        return taken


def first_phase(segments: Segments, seed: int) -> MixPhase | None:
    """Begin with all sources."""
    count = len(segments[0][1])
    return make_phase(segments, 0, range(count), (0,) * count, seed)


def phase_without(phase: MixPhase, segments: Segments, position: int, source: int, seed: int) -> MixPhase | None:
    """Go on from a position without one more source; None if none with a weight is left."""
    return make_phase(
        segments,
        position,
        tuple(each for each in phase.sources if each != source),
        tuple(phase.taken(position)),
        seed,
    )


def make_phase(
    segments: Segments,
    start: int,
    sources: Sequence[int],
    before: Sequence[int],
    seed: int,
    owed: Sequence[Fraction] | None = None,
) -> MixPhase | None:
    """Mix some sources from a position on; None if none of them has a weight from there on.

    `owed` is what all sources should have given before, and have not.
    """
    later = [(max(0, at - start), shares) for at, shares in segments]
    first = max(number for number, (at, _) in enumerate(later) if at == 0)
    kept = []
    for at, shares in later[first:]:
        among = [shares[source] for source in sources]
        if not sum(among):  # where none of those left has a weight, all of them have the same
            among = [Fraction(int(any(others[source] for _, others in later[first:]))) for source in sources]
        if not sum(among):
            return None
        kept.append((at, exact_shares(among)))
    due = None if owed is None else [owed[source] for source in sources]
    mix = QuotaMix(kept, key=hash_key("mix", seed, start), before=due)
    return MixPhase(start, tuple(sources), tuple(before), mix)


def phase_at(
    at: int, saved: Mapping[str, Any], segments: Segments, names: Sequence[str], seed: int, owed: Any
) -> MixPhase | None:
    """Make the phase of a state, whose counts have to be those that its weights lead to."""
    start, sources, before, taken = (saved[name] for name in _PHASE)
    if not sources or len(set(sources)) < len(sources) or not set(sources) <= set(names):
        raise refuse("sources", sources, f"some of {', '.join(names)}")
    if (len(before), len(taken)) == (len(names), len(sources)) and (sum(before), sum(taken)) == (start, at - start):
        phase = make_phase(segments, start, [names.index(each) for each in sources], before, seed, owed)
        if phase is None or phase.mix.know(at - start, taken):
            return phase
    raise refuse("phase", saved, "counts of all sources that follow from their weights")


def read_fractions(saved: Mapping[str, Any], name: str, count: int) -> list[Fraction]:
    """Read weights, or what sources are owed, from a state."""
    values = saved.get(name) or []
    fractions = list(map(Fraction, values)) if all(map(_FRACTION.fullmatch, values)) else []
    if len(fractions) != count or (name == "weights" and (min(fractions) < 0 or sum(fractions) != 1)):
        raise refuse(name, values, f"{count} fractions")
    return fractions


def find_end(phase: MixPhase, totals: Sequence[int | None]) -> tuple[int, int] | None:
    """Find where the first source has nothing more to give though it is its turn: the position, and the source."""
    found: tuple[int, int] | None = None
    for source in phase.sources:
        total = totals[source]
        if total is None:
            continue
        end = _turn_after(phase, source, total)
        if end is not None and (found is None or end < found[0]):
            found = end, source
    return found


def _turn_after(phase: MixPhase, source: int, total: int) -> int | None:
    """Return the position at which a source would give its sample number `total`, if it ever comes to that."""
    place = phase.sources.index(source)
    needed = total - phase.before[source]
    position = phase.mix.first_after(place, needed)
    if position is None:
        return None
    # Its share reaches that much there, and it has given it then, or does so at one of the turns before.
    low, high = 0, position
    while low < high:
        middle = (low + high) // 2
        if phase.mix.taken(middle)[place] > needed:
            high = middle
        else:
            low = middle + 1
    return phase.start + low - 1


def _as_array(sources: tuple[int, ...]) -> Int64Array:
    return np.array(sources, np.int64)


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
        self._here: Position = partial(dict, epoch=0, given=0, samples=None)  # after the sample given last

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
        self._here = partial(after, count)
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
        self._here = partial(dict, epoch=self._epoch, given=self._given, samples=self._shards.get_state())

    def close(self) -> None:
        """Close what is open."""
        if self._shards is not None:
            self._shards.close()

    @property
    def position(self) -> Position:
        """What describes where the source is."""
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
        self._rest, self._here = Block(), partial(dict, known)
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
        feeds = {feed.name: feed.position for feed in self._feeds}
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
    feeds: Mapping[str, Position]
    phase: MixPhase | None
    tokens: int | None  # None: weights do not follow them
    weights: Sequence[Fraction]
    owed: Sequence[Fraction]

    def state(self) -> State:
        """Describe it as plain values."""
        phase, names = self.phase, list(self.feeds)
        state: State = {"at": self.at, "feeds": {name: position() for name, position in self.feeds.items()}}
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
    feeds = {names[source]: partial(after, int(counts[source])) for source, after in moving.items() if counts[source]}
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
