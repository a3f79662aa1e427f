"""Shares that are exact at every position: which of several sources gives the next sample, at any weights.

Of the first n samples each source gives its share of n, rounded down or up; so it is never off by one or more. Sample
number j of a source may come from the position on where its share exceeds j, and must come by the one where its share
reaches j + 1. Giving always the one that must come soonest, among those that may come, meets all of these times: shares
themselves are a way to meet them in fractions of samples, and so there is a way in whole ones, which the rule finds.
Weights may change at given positions; shares then are sums over what was and what is.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from fractions import Fraction
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.types import Int64Array

# A mix that repeats is computed once, as many times its period as fit; one of a longer period as it goes.
_LONGEST_PERIOD = 1 << 20
_TABLE = 1 << 12
_BLOCK = 1 << 8
_BETWEEN_KNOWN = 1 << 14
_NEVER = 1 << 62
_WORD = (1 << 64) - 1


def exact_shares(weights: Sequence[float | Fraction]) -> tuple[Fraction, ...]:
    """Return weights as exact shares of 1; a decimal means what is written, 0.1 a tenth."""
    if not all(math.isfinite(weight) for weight in weights):
        raise ConfigError(f"weights {list(map(float, weights))} make no mix: they must be finite numbers")
    exact = [weight if isinstance(weight, Fraction | int) else Fraction(repr(float(weight))) for weight in weights]
    if not exact or any(weight < 0 for weight in exact) or not sum(exact):
        raise ConfigError(f"weights {list(map(float, weights))} make no mix: none may be negative, and not all 0")
    return tuple(Fraction(weight) / sum(exact) for weight in exact)


class QuotaMix:
    """Which source gives the sample at each position.

    Args:
        segments: From which position on which shares apply; the first begins at 0, the last goes on for ever.
        key: Decides between sources that could equally well come next.
        before: Shares that sources have from before the first position, in samples: what they are owed.
    """

    def __init__(
        self,
        segments: Sequence[tuple[int, Sequence[Fraction]]],
        *,
        key: int = 0,
        before: Sequence[Fraction] | None = None,
    ) -> None:
        self._starts = [start for start, _ in segments]
        self._num_sources = len(segments[0][1])
        self._key = key
        owed = list(before or [Fraction(0)] * self._num_sources)
        # All shares in units of one over a common denominator, as integers of any size: nothing is ever rounded.
        self._unit = math.lcm(*(share.denominator for _, shares in segments for share in (*shares, *owed)))
        self._rates = [[int(share * self._unit) for share in shares] for _, shares in segments]
        totals = [[int(share * self._unit) for share in owed]]
        for (start, _), (stop, _), rates in zip(segments, segments[1:], self._rates, strict=False):
            totals.append([total + (stop - start) * rate for total, rate in zip(totals[-1], rates, strict=True)])
        self._totals = totals  # of each source, where each segment begins
        self._by_source = [[row[source] for row in totals] for source in range(self._num_sources)]
        # Where the counts of all sources are known, and these counts.
        self._known_at: list[int] = [0]
        self._known: list[list[int]] = [[0] * self._num_sources]
        is_periodic = len(segments) == 1 and not any(owed) and self._unit <= _LONGEST_PERIOD
        self._period = self._unit * max(1, _TABLE // self._unit) if is_periodic else None
        # Of a mix that repeats: what is computed of its period so far, block by block, and the counts before each.
        self._blocks: list[Int64Array] = []
        self._counts: list[list[int]] = [[0] * self._num_sources]

    def labels(self, position: int, count: int) -> Int64Array:
        """Return the source of each of `count` positions in a row."""
        if self._period is None:
            return self._go(position, count)
        parts = []
        while count:
            block, offset = divmod(position % self._period, _BLOCK)
            part = self._block(block)[offset : offset + count]
            parts.append(part)
            position, count = position + len(part), count - len(part)
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])

    def taken(self, position: int) -> list[int]:
        """Count the samples of each source before a position."""
        if self._period is None:
            return self._counts_at(position)
        passes, rest = divmod(position, self._period)
        block, offset = divmod(rest, _BLOCK)
        seen = np.bincount(self._block(block)[:offset], minlength=self._num_sources) if offset else 0
        self._block(max(0, block - 1))
        counts = (np.array(self._counts[block]) + seen).tolist()
        per_pass = [self._period * rate // self._unit for rate in self._rates[0]]
        return [passes * each + count for each, count in zip(per_pass, counts, strict=True)]

    def know(self, position: int, counts: Sequence[int]) -> bool:
        """Take it from a state how much each source has given before a position: nothing before it is computed.

        Tells whether such counts can be: each source has its share, off by less than one.
        """
        number = bisect_right(self._starts, position) - 1
        passed = position - self._starts[number]
        dues = [total + passed * rate for total, rate in zip(self._totals[number], self._rates[number], strict=True)]
        if not all(abs(due - count * self._unit) < self._unit for due, count in zip(dues, counts, strict=True)):
            return False
        if self._period is None:
            self._insert(position, list(counts))
        return True

    def first_after(self, source: int, count: int) -> int | None:
        """Return a position before which a source has given more than so many samples, if there is one."""
        position = self._reached(source, (count + 1) * self._unit, beyond=False)
        return None if position >= _NEVER else position

    def _block(self, block: int) -> Int64Array:
        """Return the sources of a block of the period; those before it are computed once."""
        assert self._period is not None  # noqa: S101
        while len(self._blocks) <= block:
            first, counts = len(self._blocks) * _BLOCK, list(self._counts[-1])
            self._blocks.append(self._run(first, min(_BLOCK, self._period - first), counts))
            self._counts.append(counts)
        return self._blocks[block]

    def _go(self, position: int, count: int) -> Int64Array:
        """Compute the sources from a position on, and know the counts after them."""
        counts = self._counts_at(position)
        labels = self._run(position, count, counts)
        self._insert(position + count, counts)
        return labels

    def _counts_at(self, position: int) -> list[int]:
        """Count from the nearest position before one where counts are known; those on the way are known then."""
        number = bisect_right(self._known_at, position) - 1
        at, counts = self._known_at[number], list(self._known[number])
        while at < position:
            step = min(_BETWEEN_KNOWN, position - at)
            self._run(at, step, counts)
            at += step
            self._insert(at, list(counts))
        return counts

    def _insert(self, position: int, counts: list[int]) -> None:
        number = bisect_right(self._known_at, position)
        if self._known_at[number - 1] != position:
            self._known_at.insert(number, position)
            self._known.insert(number, counts)
        # Those in between are of no use to readers who go on: some are kept for those who go back.
        while len(self._known_at) > 2 and self._known_at[-2] - self._known_at[-3] < _BETWEEN_KNOWN:
            del self._known_at[-2], self._known[-2]

    def _run(self, position: int, count: int, counts: list[int]) -> Int64Array:
        """Return the sources from a position on, and add them to the counts before it."""
        waiting: list[tuple[int, int, int]] = []  # from when it may come, until when it must, source
        ready: list[tuple[int, int, int]] = []  # until when it must, a tie-breaker, source
        for source in range(self._num_sources):
            self._push(waiting, source, counts[source])
        labels = np.empty(count, np.int64)
        for offset in range(count):
            while waiting and waiting[0][0] <= position + offset:
                _, deadline, source = heappop(waiting)
                heappush(ready, (deadline, self._tie(source, counts[source]), source))
            _, _, source = heappop(ready)
            labels[offset] = source
            counts[source] += 1
            self._push(waiting, source, counts[source])
        return labels

    def _push(self, waiting: list[tuple[int, int, int]], source: int, number: int) -> None:
        """Find when a sample of a source may come and must have come."""
        first = self._reached(source, number * self._unit, beyond=True) - 1
        if first < _NEVER - 1:
            heappush(waiting, (first, self._reached(source, (number + 1) * self._unit, beyond=False), source))

    def _reached(self, source: int, amount: int, *, beyond: bool) -> int:
        """Return the first position before which the share of a source is an amount, or more than it."""
        totals = self._by_source[source]
        amount += beyond  # shares are whole numbers of units
        segment = max(0, bisect_left(totals, amount) - 1)
        rate = self._rates[segment][source]
        missing = amount - totals[segment]
        if missing <= 0:
            return self._starts[segment]
        return self._starts[segment] + -(-missing // rate) if rate else _NEVER

    def _tie(self, source: int, number: int) -> int:
        if self._period is not None:
            number %= self._period * self._rates[0][source] // self._unit
        mixed = (self._key + source * 0xBF58476D1CE4E5B9 + number * 0x9E3779B97F4A7C15) & _WORD
        return ((mixed ^ mixed >> 29) * 0x94D049BB133111EB & _WORD) >> 20
