"""Rows in random order over all tasks, in two passes: tasks sort their rows by random keys, then keys are joined.

What the first pass writes is a dataset whose tasks are sorted, each row with its key. A task of the second pass reads
the keys between two bounds from all of them, and sorts these. Neither holds more than its part of the rows in memory.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.blocks.block import Block
from penstock.order.keys import draw
from penstock.sources.base import ShardedSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.conversion.rows import SplitPlaces, TaskRows
    from penstock.types import Sample

KEY = "_shuffle_key"  # its low bits are the split
_SPLIT_BITS = np.uint64(16)
_ROWS_AT_ONCE = 1024


class RowsByKey:
    """All samples of a task, sorted by random keys that they bear."""

    def __init__(self, rows: TaskRows, splits: SplitPlaces | None, key: int) -> None:
        self._rows, self._splits, self._key = rows, splits, key
        self._given = 0

    @cached_property
    def _sorted(self) -> list[Sample]:
        parted = self._rows.parted(self._splits or OneSplit())
        samples = [(split, sample) for split, some in parted for sample in some]
        drawn = draw(self._key, np.arange(len(samples), dtype=np.uint64))
        keys = (drawn >> _SPLIT_BITS << _SPLIT_BITS).tolist()
        keyed = [{**sample, KEY: key | split} for key, (split, sample) in zip(keys, samples, strict=True)]
        return sorted(keyed, key=itemgetter(KEY))

    def take(self, count: int) -> list[Sample]:
        """Return so many of the next samples, or those that are left."""
        begin, self._given = self._given, min(self._given + count, len(self._sorted))
        return self._sorted[begin : self._given]

    def take_block(self, count: int) -> Block:
        """Return the same as a block."""
        return Block(self.take(count))

    def state_dict(self) -> dict[str, Any]:
        """Return how many were given: to go on, all are read again."""
        return {"given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after so many."""
        self._given = int(state["given"])

    def close(self) -> None:
        """Close what is open."""
        self._rows.close()


class OneSplit(NamedTuple):
    """All rows are in one split."""

    names: tuple[str, ...] = ("",)

    def place(self, row: Sample, address: tuple[str, int]) -> int:  # noqa: ARG002
        """Return 0."""
        return 0


class StoredSplit(NamedTuple):
    """In which split a row is, as its key says."""

    names: tuple[str, ...]

    def place(self, row: Sample, address: tuple[str, int]) -> int:  # noqa: ARG002
        """Return the number of the split."""
        return int(row[KEY]) & 0xFFFF


class SortedParts(ShardedSource):
    """What the first pass has written: a shard has the rows whose keys lie between two bounds, in their order."""

    makes_new_samples = True

    def __init__(self, open_parts: Callable[[], tuple[Any, Sequence[int]]], num_shards: int, fingerprint: str) -> None:
        self._open_parts, self._num_shards, self._fingerprint = open_parts, num_shards, fingerprint

    @cached_property
    def _parts(self) -> tuple[Any, Sequence[int]]:
        """All rows that were written, by number, and how many of them each part has."""
        return self._open_parts()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_parts"}

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards, by their numbers."""
        return [f"keys:{number}" for number in range(self._num_shards)]

    @property
    def fingerprint(self) -> str:
        """That of what was sorted."""
        return self._fingerprint

    def read_shard(self, shard_name: str, row: int) -> Iterator[Sample]:
        """Read the rows of all parts whose keys lie between the bounds, and sort them."""
        number = self.shard_number(shard_name)
        low, high = ((each << 64) // self._num_shards for each in (number, number + 1))
        found: list[Sample] = []
        rows, lengths = self._parts
        for part in pairwise([0, *accumulate(lengths)]):
            begin, end = (self._find(range(*part), key) for key in (low, high))
            for first in range(begin, end, _ROWS_AT_ONCE):
                found += rows[first : min(first + _ROWS_AT_ONCE, end)]
        found.sort(key=lambda sample: int(sample[KEY]))
        yield from found[row:]

    def _find(self, part: range, key: int) -> int:
        """Find the first row of a part that has at least a key."""
        rows, _ = self._parts
        return part.start + bisect_left(part, key, key=lambda row: int(rows[row][KEY]))
