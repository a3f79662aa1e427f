"""One open MDS shard: rows in order by a table of all their values, a few at random found one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.blocks.block import join_columns
from penstock.codecs.unpack import check_whole, drop_pages, release
from penstock.errors import CorruptShardError
from penstock.formats.column_errors import decode_all
from penstock.formats.encodings.base import FixedEncoding
from penstock.formats.encodings.table import get_encoding
from penstock.formats.gather import (
    ColumnGathering,
    RowOrigins,
    ValueGatherer,
    as_list,
    copy_pieces,
    copy_values,
    place_of,
    view_items,
)
from penstock.formats.rows import check_ascending, check_rows, table_bytes, view_offsets
from penstock.thread_times import decoding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from penstock.formats.base import ReadOptions, Rows, ShardBytes
    from penstock.formats.encodings.base import Encoding
    from penstock.formats.gather import RowLocations, StoredValues, Values
    from penstock.index.model import ShardInfo, ShardLayout
    from penstock.types import Columns, Int64Array, Sample


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

    def begin(self, num_rows: int, *, by_column: bool) -> ColumnGathering:
        """Begin to gather rows of shards that are laid out so."""
        return ColumnGathering(self, num_rows, by_column=by_column)

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


# --- Some rows of several shards ------------------------------------------------------------------------------


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
        """Return from which shards the rows come."""
        return RowOrigins([shard.name for shard in self._shards], self._counts, self._rows, self._order)

    def begins(self, name: str) -> Int64Array:
        """Find at which place of memory each value of a column begins."""
        return self._begins[name]

    def fixed(self, name: str, num_bytes: int) -> npt.NDArray[Any]:
        """Copy the values of a column of fixed size, as void items."""
        return copy_values(self._begins[name], num_bytes)

    def pieces(self, name: str) -> StoredValues:
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


# Finding all values of a shard takes about as long as finding those of so large a part of its rows one batch at a time.
_PART_WORTH_ALL = 1 / 16


class MDSReader:
    """One open MDS shard."""

    def __init__(self, data: ShardBytes, info: ShardInfo, options: ReadOptions) -> None:
        self._data = data
        self.name = info.name
        self._num_samples = info.num_samples
        begin = table_bytes(info.num_samples)
        self._offsets: npt.NDArray[np.uint32] | None = view_offsets(
            data, info.num_samples, begin=begin, end=len(data), shard=info.name
        )
        self.layout = _layout_of(info.layout, options)
        self._memory: ShardMemory | None = None
        self._columns: _AllValues | None = None  # where the values of all rows are, once that pays
        self._num_found = 0  # rows that were read without it
        self._next_row = 0

    def __len__(self) -> int:
        return self._num_samples

    def read(self, rows: Rows) -> list[Sample]:
        """Return the samples at these rows, in this order."""
        numbers = check_rows(rows, self._num_samples, self.name)
        stored = self._gather(numbers)
        with decoding:
            values = [self._decode(each, numbers, by_column=False) for each in stored]
            return join_columns(self.layout.wanted, values, len(numbers))

    def read_columns(self, rows: Rows) -> Columns:
        """Return the same by column: an array where all values allow it, else a list."""
        numbers = check_rows(rows, self._num_samples, self.name)
        stored = self._gather(numbers)
        with decoding:
            return {each[0]: self._decode(each, numbers, by_column=True) for each in stored}

    def find_all(self) -> None:
        """Find the values of all rows now; raise if those of any do not lie where they should."""
        if self._offsets is not None and self._num_samples:
            self._columns = _find_all(self._data, self._offsets, self.layout, self.name)

    def find(self, rows: Int64Array) -> RowLocations:
        """Find the values of some rows, all of them in range."""
        if self._columns is None and self._is_worth_all(rows):
            self.find_all()
        if self._columns is None:
            return StoredRows(self.layout, [self.memory()], [len(rows)], rows)
        return _TabledRows(self._columns, rows, self.memory())

    def row_layout(self) -> RowFields:
        """Return how its rows are stored."""
        return self.layout

    def memory(self) -> ShardMemory:
        """Return the bytes of the shard, to find rows of several shards at once (`StoredRows`)."""
        check_whole(self._data, self.name)
        if self._memory is None:
            data = self._data
            held, place = memoryview(data), place_of(data)
            self._memory = ShardMemory(self.name, data, held, place, len(data), self._num_samples)
        return self._memory

    def drop_pages(self) -> None:
        """Take the shard's pages out of memory."""
        self._columns, self._num_found, self._next_row = None, 0, 0
        drop_pages(self._data)

    def close(self) -> None:
        """Unmap the shard."""
        # These point into the mapping, which closes only when nobody does.
        self._columns, self._offsets, self._memory = None, None, None
        self._num_samples = 0
        release(self._data)

    def _gather(self, rows: Int64Array) -> list[tuple[str, Encoding, Any]]:
        """Return the stored values of each column that is wanted: an array if they are of fixed size, else pieces."""
        if not self._num_samples:
            return [(name, encoding, _no_values(encoding)) for name, encoding in self.layout.encodings]
        found, fixed = self.find(rows), self.layout.fixed  # to ask an encoding for its class would take longer
        return [
            (name, encoding, _array(found, name, encoding) if name in fixed else found.pieces(name))
            for name, encoding in self.layout.encodings
        ]

    def _is_worth_all(self, rows: Int64Array) -> bool:
        """Return whether to find all values now: if rows are read in order, or many were read already."""
        if not len(rows):
            return False
        is_in_order = int(rows[0]) == self._next_row and int(rows[-1]) == self._next_row + len(rows) - 1
        self._next_row = int(rows[-1]) + 1
        self._num_found += len(rows)
        return is_in_order or self._num_found >= _PART_WORTH_ALL * self._num_samples

    def _decode(self, column: tuple[str, Any, Any], rows: Int64Array, *, by_column: bool) -> Values:
        name, encoding, stored = column
        if name in self.layout.fixed:
            values: Values = stored if by_column else encoding.to_values(stored)
            return values
        decode: Callable[[Sequence[bytes]], Values] = encoding.to_column if by_column else encoding.decode_many
        return decode_all(decode, as_list(stored), rows, self.name, name)


def _array(found: RowLocations, name: str, encoding: Any) -> Any:
    return encoding.to_array(found.fixed(name, encoding.num_bytes))


def _no_values(encoding: Encoding) -> Any:
    return encoding.to_array(np.empty(0, f"V{encoding.num_bytes}")) if isinstance(encoding, FixedEncoding) else []


_last_layout: RowFields | None = None


def _layout_of(layout: ShardLayout, options: ReadOptions) -> RowFields:
    """Return how samples are laid out; shards that are laid out alike get one object, which is quick to compare."""
    global _last_layout
    fields = tuple(
        RowField(column.name, get_encoding(column.encoding, options.image_decoder), column.num_bytes)
        for column in layout.columns
    )
    names = tuple(field.name for field in fields if options.columns is None or field.name in options.columns)
    found, last = RowFields(fields, names), _last_layout
    if found == last:
        return last
    _last_layout = found
    return found


# --- All values of a shard ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _FixedColumn:
    """Value i is the `num_bytes` bytes from `bases[i] + offset`."""

    bases: npt.NDArray[np.uint32]
    offset: int
    items: npt.NDArray[Any]  # item k: the `num_bytes` bytes that begin at byte k of the shard, wherever that is

    def begins(self, rows: Int64Array) -> Int64Array:
        begins = self.bases[rows].astype(np.int64)
        begins += self.offset
        return begins


@dataclass(frozen=True, slots=True)
class _VariableColumn:
    """Value i is the bytes from `bases[i] + offset` to `ends[i] - distance`."""

    bases: npt.NDArray[np.uint32]
    offset: int
    ends: npt.NDArray[np.uint32]
    distance: int
    values: ValueGatherer

    def gather(self, rows: Int64Array) -> StoredValues:
        begins, ends = self.bases[rows].astype(np.int64), self.ends[rows].astype(np.int64)
        begins += self.offset
        ends -= self.distance
        return self.values.gather(begins, ends)


class _AllValues(NamedTuple):
    """Where the values of all rows are, of each column."""

    fixed: dict[str, _FixedColumn]
    variable: dict[str, _VariableColumn]


class _TabledRows:
    """Some rows of a shard of which the values of all rows are known."""

    __slots__ = ("_columns", "_rows", "_shard")

    def __init__(self, columns: _AllValues, rows: Int64Array, shard: ShardMemory) -> None:
        self._columns, self._rows, self._shard = columns, rows, shard

    def origins(self) -> RowOrigins:
        return RowOrigins([self._shard.name], [len(self._rows)], self._rows, None)

    def begins(self, name: str) -> Int64Array:
        return self._columns.fixed[name].begins(self._rows) + self._shard.place

    def fixed(self, name: str, num_bytes: int) -> npt.NDArray[Any]:  # noqa: ARG002
        column = self._columns.fixed[name]
        stored: npt.NDArray[Any] = column.items[column.begins(self._rows)]
        return stored

    def pieces(self, name: str) -> StoredValues:
        return self._columns.variable[name].gather(self._rows)


def _find_all(data: ShardBytes, offsets: npt.NDArray[np.uint32], layout: RowFields, name: str) -> _AllValues:
    """Find all values of all columns at once; a sample whose sizes do not add up makes the shard corrupt.

    A value begins at a constant distance from the end of the last variable value before it, or from the start of the
    sample: one array per variable column says it all. For the last one that is the table of the shard itself.
    """
    check_ascending(offsets, name)
    starts, stops = offsets[:-1], offsets[1:]
    num_sizes = layout.num_sizes
    sizes = _read_sizes(data, starts, stops, num_sizes, name)
    columns = _AllValues({}, {})
    bases, offset, ends = starts, 4 * num_sizes, starts.astype(np.int64) + 4 * num_sizes
    next_sizes = iter(sizes.T)
    num_left, after_last = _after_last_variable(layout)
    for each in layout.fields:
        encoding = each.encoding
        if isinstance(encoding, FixedEncoding):
            ends += encoding.num_bytes
            items = view_items(data, "V", encoding.num_bytes)
            columns.fixed[each.name] = _FixedColumn(bases, offset, items)
            offset += encoding.num_bytes
        else:
            shortest = longest = each.num_bytes or 0  # a fixed size, but values that NumPy cannot hold
            if each.num_bytes is None:
                own_sizes = next(next_sizes)
                shortest, longest = int(own_sizes.min()), int(own_sizes.max())
            ends += own_sizes if each.num_bytes is None else each.num_bytes
            num_left -= 1
            # Sizes that lie may run past 32 bits here; the check below sees it in `ends`.
            found_ends, distance = (ends.astype(np.uint32), 0) if num_left else (stops, after_last)
            values = ValueGatherer(data, shortest, longest)
            columns.variable[each.name] = _VariableColumn(bases, offset, found_ends, distance, values)
            bases, offset = found_ends, -distance
    bad = np.flatnonzero(ends != stops)
    if len(bad):
        row = int(bad[0])
        raise CorruptShardError(
            f"{name}, row {row}: its values end at byte {ends[row]}, but the sample ends at {stops[row]}",
            shard=name,
            row=row,
        )
    return columns


def _after_last_variable(layout: RowFields) -> tuple[int, int]:
    """Count the columns that are not of NumPy's fixed sizes, and the bytes of each sample after the last of them."""
    num_bytes = 0
    for each in layout.fields:
        num_bytes = num_bytes + (each.num_bytes or 0) if each.is_fixed else 0
    return sum(not each.is_fixed for each in layout.fields), num_bytes


def _read_sizes(
    data: ShardBytes, starts: npt.NDArray[np.uint32], stops: npt.NDArray[np.uint32], num_sizes: int, name: str
) -> npt.NDArray[np.uint32]:
    """Return the size words of each sample, a row a sample and a column a variable column."""
    num_bytes = 4 * num_sizes
    if not num_sizes:
        return np.zeros((len(starts), num_sizes), np.uint32)
    if (stops - starts < num_bytes).any():
        row = int(np.argmax(stops - starts < num_bytes))
        raise CorruptShardError(f"{name}, row {row}: too short to hold the sizes of its values", shard=name, row=row)
    words: npt.NDArray[np.uint32] = view_items(data, "V", num_bytes)[starts.astype(np.intp)].view("<u4")
    return words.reshape(len(starts), num_sizes)
