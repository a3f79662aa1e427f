"""One open MDS shard: rows in order by a table of all their values, a few at random found one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.errors import CorruptShardError
from penstock.formats.encodings.table import get_encoding
from penstock.formats.gather import FoundLayout, FoundRows, FoundRowsReader, copy_pieces, copy_values, pieces_of
from penstock.formats.rows import table_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.formats.base import ReadOptions, ShardBytes
    from penstock.formats.gather import ShardMemory, StoredValues
    from penstock.index.model import IndexedShard, ShardLayout
    from penstock.types import Int64Array


class ValueBounds(NamedTuple):
    """Where a value lies in its sample: so many bytes from one mark on, up to so many bytes from another.

    Marks are the beginning of the sample and the ends of its variable values, the last of which is counted from the end
    of the sample.
    """

    begin_mark: int
    begin: int
    end_mark: int
    end: int


@dataclass(frozen=True, slots=True)
class RowFields(FoundLayout):
    """How samples are laid out: the sizes of their variable values, then all values, in the order of the columns."""

    # All columns, with the size of their values; None: each sample says.
    columns: tuple[tuple[str, int | None], ...] = ()
    bounds: dict[str, ValueBounds] = field(init=False, compare=False)
    gaps: list[int] = field(init=False, compare=False)  # the bytes before each variable value, from the last mark on
    after_last: int = field(init=False, compare=False)  # the bytes after the last mark

    def __post_init__(self) -> None:
        FoundLayout.__post_init__(self)
        num_sizes = sum(num_bytes is None for _, num_bytes in self.columns)
        gaps: list[int] = []
        bounds: dict[str, ValueBounds] = {}
        offset = 4 * num_sizes
        for name, num_bytes in self.columns:
            mark = len(gaps)
            if num_bytes is None:
                gaps.append(offset)
                bounds[name] = ValueBounds(mark, offset, mark + 1, 0)
                offset = 0
            else:
                bounds[name] = ValueBounds(mark, offset, mark, offset + num_bytes)
                offset += num_bytes
        if num_sizes:  # the last mark is the end of the sample
            for name, (first, begin, last, end) in bounds.items():
                before, after = (offset if mark == num_sizes else 0 for mark in (first, last))
                bounds[name] = ValueBounds(first, begin - before, last, end - after)
        object.__setattr__(self, "bounds", bounds)
        object.__setattr__(self, "gaps", gaps)
        object.__setattr__(self, "after_last", offset)


class ValuePlaces(NamedTuple):
    """Where the values of all rows of a shard lie."""

    marks: Sequence[npt.NDArray[np.uint32]]  # counted from the beginning of the shard
    lengths: dict[str, tuple[int, int]]  # of the shortest and the longest value of each column
    within: frozenset[str]  # the columns of which as many bytes as the longest value has lie behind each beginning


class StoredRows(FoundRows):
    """Rows of shards that are laid out alike. Their values are found, and checked, when this is made.

    A row whose offsets or sizes do not add up is a `CorruptShardError`; other rows of the same shard are not looked at.
    If there is a table, that was done before, of all rows of the one shard; `offsets` are those of all of its rows.
    """

    layout: RowFields
    marks: Sequence[npt.NDArray[np.integer]]

    def __init__(
        self,
        layout: RowFields,
        shards: Sequence[ShardMemory],
        counts: Sequence[int],
        rows: Int64Array,
        order: Int64Array | None = None,
        table: ValuePlaces | None = None,
        offsets: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        super().__init__(layout, shards, counts, rows, order)
        self._table = table
        if table is None:
            self.marks, self._picked, self._place = self._find_marks(*self._find_samples(offsets)), order, 0
        else:
            self.marks, self._picked, self._place = table.marks, rows, shards[0].place

    def begins(self, name: str) -> Int64Array:
        """Find at which place of memory each value of a column begins."""
        bounds = self.layout.bounds[name]
        return self._count_from(bounds.begin_mark, bounds.begin + self._place)

    def pieces(self, name: str) -> StoredValues:
        """Copy the values of a column of any length."""
        if self._table is None:
            return copy_pieces(self.shards, self.counts, self.order, *self.bounds(name))
        is_within = name in self._table.within
        return pieces_of(self.shards[0], *self.bounds(name), self._table.lengths[name], is_within=is_within)

    def bounds(self, name: str) -> tuple[Int64Array, Int64Array]:
        """Find where the values of a column begin and end, counted as the marks are."""
        first, begin, last, end = self.layout.bounds[name]
        return self._count_from(first, begin), self._count_from(last, end)

    def _count_from(self, mark: int, num_bytes: int) -> Int64Array:
        marks = self.marks[mark] if self._picked is None else self.marks[mark][self._picked]
        begins: Int64Array = np.add(marks, num_bytes, dtype=np.int64)
        return begins

    def _find_samples(self, offsets: npt.NDArray[np.uint32] | None) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Read where each sample begins and ends, by the table of offsets of its shard, which begins at a place."""
        bounds = np.array([(shard.place, len(shard.held), table_bytes(shard.num_rows)) for shard in self.shards])
        of_shards = bounds.reshape(-1, 3).T.astype(np.int64)
        is_one = len(self.shards) == 1  # then there is one number of each for all rows
        places, num_bytes, tables = of_shards if is_one else np.repeat(of_shards, self.counts, axis=1)
        if offsets is None:
            firsts, lasts = copy_values(places + 4 + 4 * self.rows, 8).view("<u4").reshape(-1, 2).T
        else:
            firsts, lasts = offsets[:-1], offsets[1:]
        starts, stops = firsts.astype(np.int64), lasts.astype(np.int64)
        is_bad = (starts < tables) | (stops > num_bytes) | (stops - starts < 4 * len(self.layout.gaps))
        if is_bad.any():
            at = int(np.argmax(is_bad))
            begin, end = int(starts[at]), int(stops[at])
            lies_within = tables[0 if is_one else at] <= begin <= end <= num_bytes[0 if is_one else at]
            raise self._error(
                at,
                "too short to hold the sizes of its values"
                if lies_within
                else f"its offsets, {begin} and {end}, decrease or lie outside the shard",
            )
        return starts + places, stops + places, places

    def _find_marks(self, starts: Int64Array, stops: Int64Array, places: Int64Array) -> list[Int64Array]:
        """Follow the sizes of each sample from value to value, and see whether they lead to its end."""
        gaps = self.layout.gaps
        marks, end = [starts], starts
        if gaps:
            sizes = copy_values(starts, 4 * len(gaps)).view("<u4").reshape(len(starts), len(gaps))
            for gap, size in zip(gaps, sizes.astype(np.int64).T, strict=True):
                end = end + (size + gap)
                marks.append(end)
            marks[-1] = stops
        is_bad = end + self.layout.after_last != stops
        if is_bad.any():
            at = int(np.argmax(is_bad))
            found, stop = int((end - places)[at]) + self.layout.after_last, int((stops - places)[at])
            raise self._error(at, f"its values end at byte {found}, but the sample ends at {stop}")
        return marks

    def _error(self, at: int, what: str) -> CorruptShardError:
        shard, row = self.origins()._replace(order=None).find(at)
        return CorruptShardError(f"{shard}, row {row}: {what}", shard=shard, row=row)


# Finding all values of a shard takes about as long as finding those of so large a part of its rows one batch at a time.
_PART_WORTH_ALL = 1 / 16


class MDSReader(FoundRowsReader):
    """One open MDS shard."""

    layout: RowFields

    def __init__(self, data: ShardBytes, info: IndexedShard, options: ReadOptions) -> None:
        begin = table_bytes(info.num_samples)
        offsets = view_offsets(data, info.num_samples, begin=begin, end=len(data), shard=info.name)
        self._offsets: npt.NDArray[np.uint32] | None = offsets
        super().__init__(data, info, _layout_of(info.layout, options))
        self._table: ValuePlaces | None = None  # once that pays
        self._num_found = 0  # rows that were read without it
        self._next_row = 0

    def find_all(self) -> None:
        """Find the values of all rows now; raise if those of any do not lie where they should."""
        if self._offsets is None or not len(self):
            return
        gaps = self.layout.gaps
        firsts, lasts = self._offsets[:-1], self._offsets[1:]
        ends = firsts.astype(
            np.int64
        )  # of all that was found of each sample, in 64 bits: sizes that lie are seen below
        is_bad = (lasts < firsts) | (lasts - firsts < 4 * len(gaps))
        sizes = np.empty((0, 0), np.uint32)
        between: list[npt.NDArray[np.uint32]] = []
        if not is_bad.any():
            if gaps:
                # Of the shard itself: to look for them in all of memory takes longer.
                items = np.ndarray((len(self.data) - 4 * len(gaps) + 1,), f"V{4 * len(gaps)}", self.data, 0, (1,))
                sizes = items[ends].view("<u4").reshape(len(ends), len(gaps))
            for number, gap in enumerate(gaps):
                ends += sizes[:, number]
                ends += gap
                if number < len(gaps) - 1:
                    between.append(ends.astype(np.uint32))
            ends += self.layout.after_last
            is_bad = ends != lasts
        if is_bad.any():  # looked at once more, to say which row it is and why
            StoredRows(self.layout, [self.memory()], [len(self)], np.arange(len(self)), offsets=self._offsets)
        columns = iter(sizes.T)
        lengths = {
            name: (num_bytes, num_bytes) if num_bytes is not None else _extremes(next(columns))
            for name, num_bytes in self.layout.columns
        }
        marks = [firsts, *between, lasts]
        # The last row's value begins last: if so many bytes lie behind its beginning, they do behind all others.
        bounds = self.layout.bounds
        within = {
            name
            for name, (_, longest) in lengths.items()
            if int(marks[bounds[name].begin_mark][-1]) + bounds[name].begin + longest <= len(self.data)
        }
        self._table = ValuePlaces(marks, lengths, frozenset(within))

    def find(self, rows: Int64Array) -> StoredRows:
        """Find the values of some rows, all of them in range."""
        if self._table is None and self._is_worth_all(rows):
            self.find_all()
        if self._table is None:
            found: StoredRows = super().find(rows)
            return found
        return StoredRows(self.layout, [self.memory()], [len(rows)], rows, None, self._table)

    def drop_pages(self) -> None:
        """Take the shard's pages out of memory."""
        self._table, self._num_found, self._next_row = None, 0, 0
        super().drop_pages()

    def close(self) -> None:
        """Unmap the shard, once nothing points into the mapping."""
        self._table, self._offsets = None, None
        super().close()

    def _is_worth_all(self, rows: Int64Array) -> bool:
        """Return whether to find all values now: if rows are read in order, or many were read already."""
        if not len(rows):
            return False
        is_in_order = int(rows[0]) == self._next_row and int(rows[-1]) == self._next_row + len(rows) - 1
        self._next_row = int(rows[-1]) + 1
        self._num_found += len(rows)
        return is_in_order or self._num_found >= _PART_WORTH_ALL * self._num_samples


def _extremes(sizes: npt.NDArray[np.uint32]) -> tuple[int, int]:
    return int(sizes.min()), int(sizes.max())


_row_fields = lru_cache(maxsize=256)(RowFields)


def _layout_of(layout: ShardLayout, options: ReadOptions) -> RowFields:
    """Return how samples are laid out; shards that are laid out alike get one object, which is quick to compare."""
    wanted = tuple(
        (column.name, get_encoding(column.encoding, options.image_decoder, options.unpickle))
        for column in layout.columns
        if options.columns is None or column.name in options.columns
    )
    columns = tuple((column.name, column.num_bytes) for column in layout.columns)
    return _row_fields(wanted, StoredRows, columns)
