"""Rows of many MDS shards at once: where each of their values lies, found by reading no more than those rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.errors import CorruptShardError
from penstock.formats.encodings.base import FixedEncoding
from penstock.formats.gather import gather_strings, is_gathered, view_memory
from penstock.formats.rows import table_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from penstock.formats.base import ShardBytes
    from penstock.formats.encodings.base import Encoding
    from penstock.formats.gather import Pieces
    from penstock.types import Int64Array


class RowField(NamedTuple):
    """One value of each sample. Each sample is the sizes of its variable values, then all values in this order."""

    name: str
    encoding: Encoding
    num_bytes: int | None  # None: each sample says

    @property
    def is_fixed(self) -> bool:
        """Whether NumPy can hold the values as they are stored."""
        return isinstance(self.encoding, FixedEncoding)


@dataclass(frozen=True, slots=True)
class RowFields:
    """How the samples of a shard are laid out, and which of their columns are wanted."""

    fields: tuple[RowField, ...]
    wanted: tuple[str, ...]

    @property
    def num_sizes(self) -> int:
        """How many sizes each sample begins with."""
        return sum(field.num_bytes is None for field in self.fields)

    @property
    def encodings(self) -> dict[str, Encoding]:
        """The encoding of each column that is wanted."""
        return {field.name: field.encoding for field in self.fields if field.name in self.wanted}


class ShardMemory(NamedTuple):
    """The bytes of an open shard. Whoever holds `held` keeps them in place, also when the shard is closed."""

    name: str
    data: ShardBytes
    held: memoryview
    place: int
    num_bytes: int
    num_samples: int


class StoredRows:
    """Some rows of shards that are laid out alike. Their values are found, and checked, when this is made.

    A row whose offsets or sizes do not add up is a `CorruptShardError`; other rows of the same shard are not looked at.
    """

    def __init__(self, layout: RowFields, shards: Sequence[ShardMemory], rows: Sequence[Int64Array]) -> None:
        self._layout, self._shards, self._rows = layout, shards, rows
        self._counts = [len(numbers) for numbers in rows]
        self._begins: dict[str, Int64Array] = {}
        self._ends: dict[str, Int64Array] = {}
        starts, stops = self._find_samples()
        self._find_values(starts, stops)

    def __len__(self) -> int:
        return sum(self._counts)

    def begins(self, name: str) -> Int64Array:
        """Say at which place of memory each value of a column begins."""
        return self._begins[name]

    def fixed(self, name: str, num_bytes: int) -> npt.NDArray[Any]:
        """Copy the values of a column of fixed size, as void items."""
        stored: npt.NDArray[Any] = view_memory("V", num_bytes)[self._begins[name]]
        return stored

    def pieces(self, name: str) -> Pieces:
        """Copy the values of any other column."""
        begins, ends = self._begins[name], self._ends[name]
        sizes = ends - begins
        shortest, longest = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
        # An item as long as the longest value must lie within the shard, whichever value it begins with.
        if is_gathered(shortest, longest) and (shortest == longest or (begins + longest <= self._limits).all()):
            items = view_memory("S", longest)
            gathered = gather_strings(items, begins, None if shortest == longest else sizes)
            if gathered is not None:
                return gathered
        pieces: list[bytes] = []
        for shard, begin, end in self._cuts():
            data, place = shard.data, shard.place
            firsts, lasts = (begins[begin:end] - place).tolist(), (ends[begin:end] - place).tolist()
            pieces += [data[first:last] for first, last in zip(firsts, lasts, strict=True)]
        return pieces

    def by_shard(self) -> Iterator[tuple[str, slice, list[int]]]:
        """Give for each shard its name, which of these rows are its own, and their numbers in the shard."""
        for (shard, begin, end), rows in zip(self._cuts(), self._rows, strict=True):
            yield shard.name, slice(begin, end), rows.tolist()

    def _cuts(self) -> Iterator[tuple[ShardMemory, int, int]]:
        end = 0
        for shard, count in zip(self._shards, self._counts, strict=True):
            begin, end = end, end + count
            yield shard, begin, end

    def _find_samples(self) -> tuple[Int64Array, Int64Array]:
        """Read where each sample begins and ends, by the table of offsets of its shard."""
        bounds = np.array([(shard.place, shard.num_bytes, table_bytes(shard.num_samples)) for shard in self._shards])
        places, num_bytes, tables = np.repeat(bounds.reshape(-1, 3), self._counts, axis=0).T
        rows = self._rows[0] if len(self._rows) == 1 else np.concatenate(self._rows)
        offsets = view_memory("V", 8)[places + 4 + 4 * rows].view("<u4").reshape(-1, 2)
        starts, stops = offsets[:, 0].astype(np.int64), offsets[:, 1].astype(np.int64)
        shortest = 4 * self._layout.num_sizes
        is_bad = (starts < tables) | (stops > num_bytes) | (stops - starts < shortest)
        if is_bad.any():
            at = int(np.argmax(is_bad))
            begin, end = int(starts[at]), int(stops[at])
            lies_within = tables[at] <= begin <= end <= num_bytes[at]
            raise self._error(
                at,
                "too short to hold the sizes of its values"
                if lies_within
                else f"its offsets, {begin} and {end}, lie outside of the shard, or descend",
            )
        self._places = places
        self._limits = places + num_bytes
        return starts + places, stops + places

    def _find_values(self, starts: Int64Array, stops: Int64Array) -> None:
        """Follow the sizes of each sample from value to value, and see whether they lead to its end."""
        layout = self._layout
        num_sizes = layout.num_sizes
        sizes = iter(())
        if num_sizes:
            words = view_memory("V", 4 * num_sizes)[starts].view("<u4").reshape(len(starts), num_sizes)
            sizes = iter(words.astype(np.int64).T)
        base, offset = starts, 4 * num_sizes
        for field in layout.fields:
            begins = base + offset if offset else base
            if field.num_bytes is None:
                base, offset = begins + next(sizes), 0
            else:
                offset += field.num_bytes
            if field.name in layout.wanted:
                self._begins[field.name] = begins
                if not field.is_fixed:
                    self._ends[field.name] = base if field.num_bytes is None else begins + field.num_bytes
        ends = base + offset
        is_bad = ends != stops
        if is_bad.any():
            at = int(np.argmax(is_bad))
            end, stop = int(ends[at] - self._places[at]), int(stops[at] - self._places[at])
            raise self._error(at, f"its values end at byte {end}, but the sample at {stop}")

    def _error(self, at: int, what: str) -> CorruptShardError:
        for name, rows, numbers in self.by_shard():
            if rows.start <= at < rows.stop:
                row = numbers[at - rows.start]
                return CorruptShardError(f"{name}, row {row}: {what}", shard=name, row=row)
        raise IndexError(at)
