"""Some rows of a dataset by their numbers: a view. Nothing is copied, and what is left out is not read.

All rows are numbered end to end. A view has some of these numbers, in rising order: its row 5 is the row with the sixth
of them. So its shards are those of the whole, with fewer rows, and reading it is reading the whole at other numbers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ConfigError
from penstock.order.id_spans import IdSpans
from penstock.reading.source import FollowsSamples, JoinedSources, ShardRange, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.types import Int64Array

    Chosen = slice | Sequence[int] | Int64Array


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Numbers of rows, rising: a range, or an array that is not changed.

    Args:
        numbers: The numbers.
        num_rows: How many rows there are in the whole.
    """

    numbers: range | Int64Array
    num_rows: int

    @classmethod
    def all(cls, num_rows: int) -> KeptRows:
        """Keep every row."""
        return cls(range(num_rows), num_rows)

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def digest(self) -> str:
        """A word for the numbers."""
        if isinstance(self.numbers, range):
            return f"{self.numbers.start}-{self.numbers.stop}-{self.numbers.step}"
        return hashlib.blake2b(np.ascontiguousarray(self.numbers).data, digest_size=16).hexdigest()

    def keep(self, chosen: Chosen) -> KeptRows:
        """Keep some of these rows, by a slice, a mask, or their places in this view."""
        if isinstance(chosen, slice):
            places = range(len(self))[chosen]
            places = places if places.step > 0 else places[::-1]
            return KeptRows(self.numbers[places.start : places.stop : places.step], self.num_rows)
        return KeptRows(self.stored(self._check(np.asarray(chosen))), self.num_rows)

    def _check(self, chosen: Int64Array) -> Int64Array:
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise ConfigError(f"the mask has {chosen.size} values, but there are {len(self)} rows")
            return np.flatnonzero(chosen)
        if chosen.size and chosen.dtype.kind not in "iu":
            raise ConfigError(f"rows are chosen by a slice, a mask or whole numbers, not by {chosen.dtype} values")
        places = np.sort(chosen.astype(np.int64).reshape(-1))
        if places.size and not (-len(self) <= places[0] and places[-1] < len(self)):
            wrong = int(places[0] if places[0] < -len(self) else places[-1])
            raise ConfigError(f"row {wrong} is out of range: there are {len(self)} rows")
        places = np.sort(places + len(self) * (places < 0))
        if (np.diff(places) == 0).any():
            twice = int(places[1:][np.diff(places) == 0][0])
            raise ConfigError(f"row {twice} is chosen twice: a view has each row once; give streams repeat= for more")
        return places

    def stored(self, places: range | Int64Array) -> Int64Array:
        """Return the numbers in the whole of rows of this view."""
        at = np.asarray(places, np.int64)
        if isinstance(self.numbers, range):
            return self.numbers.start + self.numbers.step * at
        return self.numbers[at]

    def firsts(self, starts: Int64Array) -> Int64Array:
        """Return for each of some numbers of the whole, how many rows of this view lie before it."""
        if isinstance(self.numbers, range):
            steps = -(-(starts - self.numbers.start) // self.numbers.step)
            return np.clip(steps, 0, len(self.numbers))
        return np.searchsorted(self.numbers, starts).astype(np.int64)

    def counts(self, starts: Int64Array) -> Int64Array:
        """Return how many rows of this view lie in each shard, by where shards start and the last ends."""
        return np.diff(self.firsts(starts))


class KeptSource(JoinedSources):
    """A source of which some streams have only some of their rows.

    Args:
        base: The source of all rows.
        first_rows: The first row of each stream in it, and the end of the last.
        kept: The rows of each stream; None: all.
    """

    def __init__(self, base: Source, first_rows: Int64Array, kept: Sequence[KeptRows | None]) -> None:
        super().__init__([ShardRange(base, 0, len(base.spans))])
        self.base, self.first_rows = base, first_rows
        self._kept = [
            each or KeptRows.all(num_rows) for each, num_rows in zip(kept, np.diff(first_rows).tolist(), strict=True)
        ]
        self._first_ids = np.cumsum([0, *map(len, self._kept)])
        begins = np.zeros(len(base.spans) + 1, np.int64)
        for first_row, first_id, rows in zip(first_rows, self._first_ids, self._kept, strict=False):
            starts = base.spans.starts - first_row
            begins = np.where(starts >= 0, first_id + rows.firsts(starts), begins)
        self.spans = IdSpans(np.diff(begins))

    def stored(self, ids: range | Int64Array) -> Int64Array:
        """Return the ids of samples in the source of all rows."""
        asked = np.asarray(ids, np.int64)
        if len(self._kept) == 1:
            return self._kept[0].stored(asked)
        streams = np.searchsorted(self._first_ids, asked, side="right") - 1
        found = np.empty_like(asked)
        for stream in np.flatnonzero(np.bincount(streams)).tolist():
            here = streams == stream
            places = asked[here] - self._first_ids[stream]
            found[here] = self.first_rows[stream] + self._kept[stream].stored(places)
        return found

    def announce(self, ids: Int64Array, *, is_first: bool) -> None:
        """Announce samples to the source of all rows, by their ids there."""
        if isinstance(self.base, FollowsSamples):
            self.base.announce(self.stored(ids), is_first=is_first)


def whole_of(source: Source) -> Source:
    """Return the source of all rows."""
    return source.base if isinstance(source, KeptSource) else source


def locate_row(source: Source, sample_id: int) -> tuple[int, int]:
    """Return the shard and the row in it of a sample."""
    number = int(source.stored(range(sample_id, sample_id + 1))[0]) if isinstance(source, KeptSource) else sample_id
    spans = whole_of(source).spans
    shard = spans.shard_of(number)
    return shard, number - int(spans.starts[shard])
