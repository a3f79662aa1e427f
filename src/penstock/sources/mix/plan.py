"""Which source of a mix is next, and where sources leave it: arithmetic, without a sample.

A phase is the time between two sources leaving. In each, shares are those of the sources that are left, and exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.order.keys import hash_key
from penstock.order.quota import QuotaMix, exact_shares
from penstock.order.state_fields import COUNT, refuse
from penstock.outside_text import Bounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.types import Int64Array

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
    """Go on from a position without one more source; None if nobody with a weight is left."""
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
        if not sum(among):  # where nobody who is left has a weight, all who are left have the same
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
