"""Rows of many MDS shards at once: where each of their values lies, found by reading no more than those rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from penstock.errors import CorruptShardError
from penstock.formats.encodings.base import FixedEncoding
from penstock.formats.gather import copy_values, gather_strings, is_gathered, view_memory
from penstock.formats.rows import table_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    num_sizes: int = field(init=False, compare=False)  # that each sample begins with
    encodings: tuple[tuple[str, Encoding], ...] = field(init=False, compare=False)  # of the columns that are wanted
    fixed: frozenset[str] = field(init=False, compare=False)  # those that NumPy can hold as they are stored

    def __post_init__(self) -> None:
        encodings = tuple((each.name, each.encoding) for each in self.fields if each.name in self.wanted)
        object.__setattr__(self, "num_sizes", sum(each.num_bytes is None for each in self.fields))
        object.__setattr__(self, "encodings", encodings)
        object.__setattr__(self, "fixed", frozenset(each.name for each in self.fields if each.is_fixed))

    def find_rows(
        self, shards: Sequence[ShardMemory], counts: Sequence[int], rows: Int64Array, order: Int64Array | None = None
    ) -> StoredRows:
        """Find the values of rows of several shards, shard by shard."""
        return StoredRows(self, shards, counts, rows, order)


class ShardMemory(NamedTuple):
    """The bytes of an open shard. Whoever holds `held` keeps them in place, also when the shard is closed."""

    name: str
    data: ShardBytes
    held: memoryview
    place: int
    num_bytes: int
    num_samples: int


class RowOrigins(NamedTuple):
    """From which shards rows come, without keeping the shards in memory."""

    names: Sequence[str]  # of the shards
    counts: Sequence[int]  # how many rows there are of each
    rows: Int64Array  # their numbers within the shards
    order: Int64Array | None  # which of them stands at each place

    def find(self, place: int) -> tuple[str, int]:
        """Give the shard and the row that stands at a place."""
        at = place if self.order is None else int(self.order[place])
        shard = int(np.searchsorted(np.cumsum(self.counts), at, side="right"))
        return self.names[shard], int(self.rows[at])


class FoundRows(Protocol):
    """Rows whose values are found. Whoever holds this keeps them in memory."""

    def origins(self) -> RowOrigins:
        """Say from which shards the rows come."""
        ...

    def begins(self, name: str) -> Int64Array:
        """Say at which place of memory each value of a column begins."""
        ...

    def fixed(self, name: str, num_bytes: int) -> npt.NDArray[Any]:
        """Copy the values of a column of fixed size, as void items."""
        ...

    def pieces(self, name: str) -> Pieces:
        """Copy the values of any other column."""
        ...


class GathersValues(Protocol):
    """A shard reader that gives stored values column by column, to be decoded when all of a batch are there."""

    name: str
    encodings: Mapping[str, Encoding]

    def gather(self, name: str, rows: Int64Array) -> Pieces:
        """Copy the stored values of a column."""
        ...


class ReaderRows(NamedTuple):
    """Some rows of one shard, whose reader finds their values itself."""

    reader: GathersValues
    numbers: Int64Array

    def origins(self) -> RowOrigins:
        """Say from which shard the rows come."""
        return RowOrigins([self.reader.name], [len(self.numbers)], self.numbers, None)

    def pieces(self, name: str) -> Pieces:
        """Copy the values of a column."""
        return self.reader.gather(name, self.numbers)


class StoredRows:
    """Some rows of shards that are laid out alike. Their values are found, and checked, when this is made.

    A row whose offsets or sizes do not add up is a `CorruptShardError`; other rows of the same shard are not looked at.

    Args:
        layout: How all of the shards are laid out.
        shards: The shards, each one once.
        counts: How many rows there are of each.
        rows: The numbers of the rows within their shards, shard by shard; all of them are in range.
        order: Which of these rows stands at each place of what is given out; by default all, as they are.
    """

    def __init__(
        self,
        layout: RowFields,
        shards: Sequence[ShardMemory],
        counts: Sequence[int],
        rows: Int64Array,
        order: Int64Array | None = None,
    ) -> None:
        self._layout, self._shards, self._counts, self._rows, self._order = layout, shards, counts, rows, order
        self._begins: dict[str, Int64Array] = {}
        self._ends: dict[str, Int64Array] = {}
        starts, stops = self._find_samples()
        self._find_values(starts, stops)

    def __len__(self) -> int:
        return len(self._rows)

    def origins(self) -> RowOrigins:
        """Say from which shards the rows come."""
        return RowOrigins([shard.name for shard in self._shards], self._counts, self._rows, self._order)

    def begins(self, name: str) -> Int64Array:
        """Say at which place of memory each value of a column begins."""
        return self._begins[name]

    def fixed(self, name: str, num_bytes: int) -> npt.NDArray[Any]:
        """Copy the values of a column of fixed size, as void items."""
        return copy_values(self._begins[name], num_bytes)

    def pieces(self, name: str) -> Pieces:
        """Copy the values of any other column."""
        return copy_pieces(self._shards, self._counts, self._order, self._begins[name], self._ends[name])

    def _ordered(self, values: Int64Array) -> Int64Array:
        return values if self._order is None else values[self._order]

    def _find_samples(self) -> tuple[Int64Array, Int64Array]:
        """Read where each sample begins and ends, by the table of offsets of its shard."""
        bounds = np.array([(shard.place, shard.num_bytes, table_bytes(shard.num_samples)) for shard in self._shards])
        places, num_bytes, tables = np.repeat(bounds.reshape(-1, 3).T, self._counts, axis=1)
        offsets = copy_values(places + 4 + 4 * self._rows, 8).view("<u4").reshape(-1, 2)
        starts, stops = offsets[:, 0].astype(np.int64), offsets[:, 1].astype(np.int64)
        is_bad = (starts < tables) | (stops > num_bytes) | (stops - starts < 4 * self._layout.num_sizes)
        if is_bad.any():
            at = int(np.argmax(is_bad))
            begin, end = int(starts[at]), int(stops[at])
            lies_within = tables[at] <= begin <= end <= num_bytes[at]
            raise self._error(
                at,
                "too short to hold the sizes of its values"
                if lies_within
                else f"its offsets, {begin} and {end}, decrease or lie outside the shard",
            )
        self._places = places
        return starts + places, stops + places

    def _find_values(self, starts: Int64Array, stops: Int64Array) -> None:
        """Follow the sizes of each sample from value to value, and see whether they lead to its end."""
        layout = self._layout
        num_sizes = layout.num_sizes
        words = copy_values(starts, 4 * num_sizes).view("<u4") if num_sizes else np.empty(0, np.uint32)
        sizes = iter(words.reshape(len(starts), num_sizes).astype(np.int64).T)
        base, offset = starts, 4 * num_sizes
        for each in layout.fields:
            begins = base + offset
            if each.num_bytes is None:
                base, offset = begins + next(sizes), 0
            else:
                offset += each.num_bytes
            if each.name in layout.wanted:
                self._begins[each.name] = self._ordered(begins)
                if not each.is_fixed:
                    self._ends[each.name] = self._ordered(base if each.num_bytes is None else base + offset)
        is_bad = base + offset != stops
        if is_bad.any():
            at = int(np.argmax(is_bad))
            end, stop = int((base + offset - self._places)[at]), int((stops - self._places)[at])
            raise self._error(at, f"its values end at byte {end}, but the sample ends at {stop}")

    def _error(self, at: int, what: str) -> CorruptShardError:
        shard, row = self.origins()._replace(order=None).find(at)
        return CorruptShardError(f"{shard}, row {row}: {what}", shard=shard, row=row)


class HeldBytes(Protocol):
    """Bytes that stay in place for as long as this is held."""

    @property
    def data(self) -> ShardBytes:
        """The bytes."""
        ...

    @property
    def place(self) -> int:
        """Where they begin in memory (`place_of`)."""
        ...

    @property
    def num_bytes(self) -> int:
        """How many they are."""
        ...


def copy_pieces(
    shards: Sequence[HeldBytes], counts: Sequence[int], order: Int64Array | None, begins: Int64Array, ends: Int64Array
) -> Pieces:
    """Copy values of any lengths that were found to lie in these shards.

    There are so many of each shard, and `order` says which of them stands at each place of what is given out, as in
    `begins` and `ends`.
    """
    sizes = ends - begins
    shortest, longest = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
    if is_gathered(shortest, longest):
        limits = np.repeat([shard.place + shard.num_bytes for shard in shards], counts)
        # An item as long as the longest value must lie within the shard, whichever value it begins with.
        is_within = shortest == longest or (begins + longest <= (limits if order is None else limits[order])).all()
        sizes_if_unequal = None if shortest == longest else sizes
        gathered = gather_strings(view_memory("S", longest), begins, sizes_if_unequal) if is_within else None
        if gathered is not None:
            return gathered
    data = [shard.data for shard, count in zip(shards, counts, strict=True) for _ in range(count)]
    places = np.repeat([shard.place for shard in shards], counts)
    if order is not None:
        data, places = list(map(data.__getitem__, order.tolist())), places[order]
    firsts, lasts = (begins - places).tolist(), (ends - places).tolist()
    return [each[first:last] for each, first, last in zip(data, firsts, lasts, strict=True)]
