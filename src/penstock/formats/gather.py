"""Values that lie anywhere in memory, of one shard or of many → columns and samples, in few steps of Python."""

from __future__ import annotations

import ctypes
import platform
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from penstock.blocks.block import join_columns
from penstock.codecs.unpack import check_whole, drop_pages, release
from penstock.formats.column_errors import decode_all, decode_error
from penstock.formats.encodings.base import FixedEncoding
from penstock.formats.rows import check_rows
from penstock.thread_times import decoding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from penstock.formats.encodings.base import Encoding
    from penstock.formats.rows import FileBytes, Rows
    from penstock.index.model import IndexedShard
    from penstock.types import Columns, Int64Array, Sample

    # Either is a value of bytes for each; an array of NumPy's byte strings is one step for all of them.
    StoredValues: TypeAlias = npt.NDArray[np.bytes_] | list[bytes]
    Values: TypeAlias = npt.NDArray[Any] | list[Any]

# NumPy waits for many places of memory at once, where a step of Python waits for one after the other; but it copies
# each value twice, and blanks what a shorter one does not fill. Measured: it pays up to these lengths.
_MOST_BYTES_IF_EQUAL = 1024
_MOST_BYTES = 96
_FEW_VALUES = 8  # that are sliced sooner than looked at together

# No array begins at address 0. The first page of a process is never mapped, so nothing is lost before this one.
_ORIGIN = 1 << 12
# What the memory of a process is mapped to, unless it asks for more: 47 bits on x86-64, 48 on ARM.
_ADDRESSES = 1 << (47 if platform.machine() in ("x86_64", "AMD64") else 48)
_LARGEST_ITEM = (1 << 62) // _ADDRESSES  # NumPy counts the bytes of an array as if no two items shared any


@lru_cache(maxsize=256)
def view_memory(kind: str, num_bytes: int) -> npt.NDArray[Any]:
    """View all memory of this process as overlapping items, so that values of many shards are one gather away.

    Items are found by their places (`place_of`). To ask for a place where nothing is mapped ends the process:
    only ask for what was checked to lie within bytes that are held.
    """
    length = _ADDRESSES - _ORIGIN
    return np.ndarray((length - num_bytes,), f"{kind}{num_bytes}", _memory(), 0, (1,))


def copy_values(begins: Int64Array, num_bytes: int) -> npt.NDArray[Any]:
    """Copy values of so many bytes, which begin at these places of memory (`place_of`), as void items."""
    if num_bytes <= _LARGEST_ITEM:
        stored: npt.NDArray[Any] = view_memory("V", num_bytes)[begins]
        return stored
    return np.frombuffer(join_values(begins, np.full(len(begins), num_bytes)), f"V{num_bytes}")


def join_values(begins: Int64Array, sizes: Int64Array) -> bytearray:
    """Copy values of so many bytes, which begin at these places of memory (`place_of`), one after another."""
    memory = _memory()
    return bytearray().join(
        [memory[begin:end] for begin, end in zip(begins.tolist(), (begins + sizes).tolist(), strict=True)]
    )


@lru_cache(maxsize=1)
def _memory() -> memoryview:
    """View all memory of this process, under the condition of `view_memory`."""
    return memoryview((ctypes.c_char * (_ADDRESSES - _ORIGIN)).from_address(_ORIGIN)).cast("B")


def place_of(data: FileBytes) -> int:
    """Return where bytes lie, as `view_memory` numbers places; true for as long as they are held."""
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address - _ORIGIN


def gather_strings(
    items: npt.NDArray[Any], begins: Int64Array, sizes: Int64Array | None
) -> npt.NDArray[np.bytes_] | None:
    """Copy values as byte strings; `None` if some end in a zero byte, which a byte string would lose.

    Without `sizes` each value is as long as an item; with them, none is longer.
    """
    gathered: npt.NDArray[np.bytes_] = items[begins]
    grid = gathered.view(np.uint8).reshape(len(begins), gathered.itemsize)
    if sizes is None:
        last_bytes = grid[:, -1]
    else:
        grid *= np.arange(gathered.itemsize, dtype=np.uint8) < sizes.astype(np.uint8)[:, None]
        last_bytes = grid[np.arange(len(sizes)), sizes - 1] | (sizes == 0)
    return gathered if last_bytes.all() else None


class ShardMemory(NamedTuple):
    """An open shard. What has this keeps its bytes in place, also when the shard is closed."""

    name: str
    data: Any  # slices to bytes, where a format copies single values
    held: memoryview
    place: int  # where the bytes begin in memory (`place_of`)
    num_rows: int
    opened: Any = None  # what a format made of the bytes


def copy_pieces(
    shards: Sequence[ShardMemory], counts: Sequence[int], order: Int64Array | None, begins: Int64Array, ends: Int64Array
) -> StoredValues:
    """Copy values of any lengths that were found to lie in these shards.

    There are so many of each shard, and `order` says which of them stands at each place of what is given out, as in
    `begins` and `ends`.
    """
    sizes = ends - begins
    lengths = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
    if len(shards) == 1:
        return pieces_of(shards[0], begins - shards[0].place, ends - shards[0].place, lengths)
    if _is_short(*lengths):
        limits = np.repeat([shard.place + len(shard.held) for shard in shards], counts)
        # An item as long as the longest value must lie within the shard, whichever value it begins with.
        is_within = (begins + lengths[1] <= (limits if order is None else limits[order])).all()
        gathered = _copy_strings(begins, begins, ends, lengths) if is_within else None
        if gathered is not None:
            return gathered
    data = [shard.data for shard, count in zip(shards, counts, strict=True) for _ in range(count)]
    places = np.repeat(np.array([shard.place for shard in shards], np.int64), counts)
    if order is not None:
        data, places = list(map(data.__getitem__, order.tolist())), places[order]
    firsts, lasts = (begins - places).tolist(), (ends - places).tolist()
    return [each[first:last] for each, first, last in zip(data, firsts, lasts, strict=True)]


def pieces_of(
    shard: ShardMemory, begins: Int64Array, ends: Int64Array, lengths: tuple[int, int], *, is_within: bool = False
) -> StoredValues:
    """Copy values of one shard, from bytes of it to others; `lengths` are those of the shortest and the longest.

    With `is_within`, as many bytes as the longest has are known to lie behind all beginnings.
    """
    is_few = len(begins) <= _FEW_VALUES or not _is_short(*lengths)
    if not is_few and (is_within or int(begins.max()) + lengths[1] <= len(shard.held)):
        gathered = _copy_strings(begins + shard.place, begins, ends, lengths)
        if gathered is not None:
            return gathered
    data = shard.data
    return [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _is_short(shortest: int, longest: int) -> bool:
    """Return whether values of such lengths are better copied by NumPy than one by one."""
    return 0 < longest <= (_MOST_BYTES_IF_EQUAL if shortest == longest else _MOST_BYTES)


def _copy_strings(
    places: Int64Array, begins: Int64Array, ends: Int64Array, lengths: tuple[int, int]
) -> npt.NDArray[np.bytes_] | None:
    shortest, longest = lengths
    return gather_strings(view_memory("S", longest), places, None if shortest == longest else ends - begins)


def as_list(pieces: StoredValues) -> list[bytes]:
    """Return each value's bytes as an object of its own."""
    return pieces if isinstance(pieces, list) else pieces.tolist()


def in_order(items: list[Any], places: Sequence[Int64Array]) -> list[Any]:
    """Put items that were gathered group by group at their places."""
    if not items:
        return items
    numbers = np.empty(len(items), dtype=np.int64)
    numbers[np.concatenate(places)] = np.arange(len(items))
    return list(map(items.__getitem__, numbers.tolist()))


class GatheredColumn(ABC):
    """Takes stored values, those of some shards after those of others, then returns the values of some rows."""

    @abstractmethod
    def add(self, rows: Any, places: Int64Array) -> None:
        """Take the values of rows that were found, which belong to these places, in rising order."""

    def finish(self, places: Sequence[Int64Array]) -> None:  # noqa: B027  most have nothing to do
        """All are there, those of each `add` at these places: find out whether they can be read."""

    @abstractmethod
    def take(self, which: slice | Int64Array) -> Values:
        """Return the values at some places; at places that are no slice before `finish`, too."""

    def so_far(self, places: Int64Array) -> Values:
        """Return the values that were added, one after the other, which is at these places."""
        return self.take(places)


class ColumnKind(ABC):
    """How the values of a column are gathered, if not as stored bytes that an encoding decodes.

    Columns of shards are gathered together if their kinds are equal.
    """

    @abstractmethod
    def begin(self, name: str, num_rows: int, *, by_sample: bool) -> GatheredColumn:
        """Begin a column of so many rows; `by_sample`, as a list of values for samples."""


# --- Columns of many shards: stored values are gathered at their places, and decoded when all of a batch are there ---


# Values this large are copied once, in the order of the batch, when it is asked for.
_LARGE_VALUE_BYTES = 2048
# Samples that are still in the processor's cache are collated, and freed, in half the time.
SAMPLES_AT_ONCE = 2048


class RowOrigins(NamedTuple):
    """From which shards rows come, without keeping the shards in memory."""

    names: Sequence[str]  # of the shards
    counts: Sequence[int]  # how many rows there are of each
    rows: Int64Array  # their numbers within the shards
    order: Int64Array | None  # which of them stands at each place

    def find(self, place: int) -> tuple[str, int]:
        """Return the shard and the row that stands at a place."""
        at = place if self.order is None else int(self.order[place])
        shard = int(np.searchsorted(np.cumsum(self.counts), at, side="right"))
        return self.names[shard], int(self.rows[at])


class FoundRows(ABC):
    """Some rows of several shards, whose values are found. What has this keeps them in memory.

    Args:
        layout: How all of the shards store their rows.
        shards: The shards, each one once.
        counts: How many rows there are of each.
        rows: The numbers of the rows within their shards, shard by shard; all of them are in range.
        order: Which of these rows stands at each place of what is given out; by default all, as they are.
    """

    def __init__(
        self,
        layout: FoundLayout,
        shards: Sequence[Any],
        counts: Sequence[int],
        rows: Int64Array,
        order: Int64Array | None = None,
    ) -> None:
        self.layout, self.shards, self.counts, self.rows, self.order = layout, shards, counts, rows, order

    def origins(self) -> RowOrigins:
        """Return from which shards the rows come."""
        return RowOrigins([shard.name for shard in self.shards], self.counts, self.rows, self.order)

    def begins(self, name: str) -> Int64Array:
        """Return at which place of memory each value of a column of fixed size begins."""
        raise NotImplementedError

    @abstractmethod
    def pieces(self, name: str) -> StoredValues:
        """Copy the values of a column that is no `ColumnKind`, nor of fixed size."""

    def read(self, name: str, how: Any, *, by_sample: bool) -> Any:
        """Return the values of a column, of rows of one shard."""
        if name in self.layout.fixed:
            values = how.to_array(copy_values(self.begins(name), how.num_bytes))
            return how.to_values(values) if by_sample else values
        if name in self.layout.typed:
            column, places = how.begin(name, len(self.rows), by_sample=by_sample), np.arange(len(self.rows))
            column.add(self, places)
            with decoding:
                column.finish([places])
                return column.take(slice(None))
        pieces, shard = as_list(self.pieces(name)), self.shards[0].name if self.shards else ""
        with decoding:
            return decode_all(how.decode_many if by_sample else how.to_column, pieces, self.rows, shard, name)


class Gathering(Protocol):
    """Rows of shards that store them alike: taken as they are stored, shard by shard, and decoded together."""

    def add(self, reader: Any, rows: Int64Array, places: Int64Array) -> None:
        """Take some rows of a shard, which may be closed then: what is still looked at stays mapped."""

    def gather(self) -> None:
        """Copy what was added so far, but for large values: nothing else of its shards stays mapped for it."""

    def finish(self) -> None:
        """All rows are there: decode what may turn out to be no value, unless it is asked for piece by piece."""

    def take(self, begin: int, end: int | None) -> Any:
        """Return the samples, or the columns, of all rows from one to another, once all are there."""

    def so_far(self) -> tuple[Int64Array, Any]:
        """Return the places of the rows that were added, and their samples or columns."""


class RowLayout(Protocol):
    """How a shard stores its rows; those of shards of equal layouts are gathered together."""

    def begin(self, num_rows: int, *, by_column: bool) -> Gathering:
        """Begin to gather so many rows, for columns or for samples."""


@runtime_checkable
class StoresRows(Protocol):
    """A shard reader whose rows can be gathered with those of other readers of its class."""

    def row_layout(self) -> RowLayout:
        """Return how its rows are stored."""


@dataclass(frozen=True, slots=True)
class FoundLayout:
    """How shards store the values of their rows, which are found in several shards at once."""

    encodings: tuple[tuple[str, Encoding | ColumnKind], ...]  # the columns that are wanted, and how each is stored
    rows: type[FoundRows]  # what rows are when they are found
    # The names of all, of those of fixed size, and of a `ColumnKind`: to ask objects for their classes takes longer.
    names: tuple[str, ...] = field(init=False, compare=False)
    fixed: frozenset[str] = field(init=False, compare=False)
    typed: frozenset[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(name for name, _ in self.encodings))
        for attribute, kind in (("fixed", FixedEncoding), ("typed", ColumnKind)):
            names = frozenset(name for name, how in self.encodings if isinstance(how, kind))
            object.__setattr__(self, attribute, names)

    def begin(self, num_rows: int, *, by_column: bool) -> Gathering:
        """Begin to gather so many rows of such shards."""
        return _ColumnGathering(self, num_rows, by_column=by_column)


class MappedReader:
    """One open shard, whose parts may be mapped files."""

    def __init__(self, parts: Sequence[FileBytes], name: str, num_samples: int) -> None:
        self._parts, self.name, self._num_samples = parts, name, num_samples

    def __len__(self) -> int:
        return self._num_samples

    def drop_pages(self) -> None:
        """Take the shard's pages out of memory."""
        for part in self._parts:
            drop_pages(part)

    def close(self) -> None:
        """Unmap the shard, once nothing points into the mapping."""
        self._num_samples = 0
        for part in self._parts:
            release(part)


class FoundRowsReader(MappedReader):
    """One open shard whose values are found in its memory, and gathered with those of others that store them alike."""

    def __init__(self, data: FileBytes, info: IndexedShard, layout: FoundLayout, opened: Any = None) -> None:
        super().__init__([data], info.name, info.num_samples)
        self.data, self.layout, self._opened = data, layout, opened
        self._memory: ShardMemory | None = None

    def read(self, rows: Rows) -> list[Sample]:
        """Return the samples at these rows, in this order."""
        found = self.find(check_rows(rows, self._num_samples, self.name))
        values = [found.read(name, how, by_sample=True) for name, how in self.layout.encodings]
        return join_columns(self.layout.names, values, len(found.rows))

    def read_columns(self, rows: Rows) -> Columns:
        """Return the same by column: an array where all values allow it, else a list."""
        found = self.find(check_rows(rows, self._num_samples, self.name))
        return {name: found.read(name, how, by_sample=False) for name, how in self.layout.encodings}

    def row_layout(self) -> FoundLayout:
        """Return how its rows are stored."""
        return self.layout

    def memory(self) -> ShardMemory:
        """Return the open shard, for rows of several to be found at once."""
        check_whole(self.data, self.name)
        if self._memory is None:
            place = place_of(self.data) if len(self.data) else 0
            held = memoryview(self.data)
            self._memory = ShardMemory(self.name, self.data, held, place, self._num_samples, self._opened)
        return self._memory

    def find(self, rows: Int64Array) -> Any:
        """Find the values of some rows, all of them in range: none if the shard is closed."""
        shards = [self.memory()] if len(self) else []
        return self.layout.rows(self.layout, shards, [len(rows)] * len(shards), rows)

    def close(self) -> None:
        """Unmap the shard, once nothing points into the mapping."""
        self._memory, self._opened = None, None
        super().close()


class _ColumnGathering(Gathering):
    """All columns of so many rows, of shards that store them alike; `by_column`, for arrays, else for samples."""

    def __init__(self, layout: FoundLayout, num_rows: int, *, by_column: bool) -> None:
        self._layout, self._num_rows, self._by_column = layout, num_rows, by_column
        self._columns = {
            name: _begin_column(name, encoding, num_rows, by_sample=not by_column)
            for name, encoding in layout.encodings
        }
        self._places: list[Int64Array] = []
        # What was added and is not looked at yet: the shards, and the rows of each with their places.
        self._waiting: list[tuple[FoundRowsReader, Any, Int64Array, Int64Array]] = []

    def add(self, reader: FoundRowsReader, rows: Int64Array, places: Int64Array) -> None:
        self._waiting.append((reader, reader.memory(), rows, places))

    def gather(self) -> None:
        if not self._waiting:
            return
        # All shards are looked at together; one that is alone knows best how to find its rows.
        readers, shards, row_groups, place_groups = zip(*self._waiting, strict=True)
        self._waiting = []
        rows, all_places = np.concatenate(row_groups), np.concatenate(place_groups)
        order, places = self._in_order(all_places)
        if len(readers) == 1 and len(readers[0]):  # it is still open
            found = readers[0].find(rows[order])
        else:
            found = self._layout.rows(self._layout, shards, list(map(len, row_groups)), rows, order)
        for column in self._columns.values():
            column.add(found, places)
        self._places.append(places)

    def _in_order(self, places: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the order in which places rise, and the places in it: values are moved once, when they are copied."""
        if len(places) < self._num_rows:
            order = np.argsort(places)
            return order, places[order]
        order, in_order = np.empty(len(places), np.int64), np.arange(len(places))
        order[places] = in_order
        return order, in_order

    def finish(self) -> None:
        self.gather()
        for column in self._columns.values():
            column.finish(self._places)

    def take(self, begin: int, end: int | None) -> Any:
        if self._by_column:
            return {name: column.take(slice(begin, end)) for name, column in self._columns.items()}
        end = self._num_rows if end is None else end
        samples: list[Sample] = []
        for first in range(begin, end, SAMPLES_AT_ONCE):
            last = min(first + SAMPLES_AT_ONCE, end)
            values = [column.take(slice(first, last)) for column in self._columns.values()]
            samples += join_columns(tuple(self._columns), values, last - first)
        return samples

    def so_far(self) -> tuple[Int64Array, Any]:
        self.gather()
        places = np.concatenate(self._places)
        columns = {name: column.so_far(places) for name, column in self._columns.items()}
        if self._by_column:
            return places, columns
        return places, join_columns(tuple(columns), list(columns.values()), len(places))


def _begin_column(name: str, how: Any, num_rows: int, *, by_sample: bool) -> GatheredColumn:
    """Begin a column in the way that suits its values."""
    if isinstance(how, ColumnKind):
        return how.begin(name, num_rows, by_sample=by_sample)
    if isinstance(how, FixedEncoding):
        return _FixedColumn(name, how, num_rows, by_sample=by_sample)
    return _VariableColumn(name, how, by_sample=by_sample)


class _FixedColumn(GatheredColumn):
    """Values of fixed size go straight to their places, unless they are large.

    Of large ones it is noted where they lie: they are copied when their batch is asked for.
    """

    def __init__(self, name: str, how: FixedEncoding, num_rows: int, *, by_sample: bool) -> None:
        self._name, self._how, self._by_sample = name, how, by_sample
        self._is_large = how.num_bytes >= _LARGE_VALUE_BYTES
        self._held: list[FoundRows] = []  # keeps the bytes mapped that the places are in
        self._stored: npt.NDArray[Any] = np.empty(num_rows, np.int64 if self._is_large else f"V{how.num_bytes}")

    def add(self, rows: FoundRows, places: Int64Array) -> None:
        stored: npt.NDArray[Any] = rows.begins(self._name)
        if self._is_large:
            self._held.append(rows)
        else:
            stored = copy_values(stored, self._how.num_bytes)
        if len(places) == len(self._stored):  # all at once, in order
            self._stored = stored
        else:
            self._stored[places] = stored

    def take(self, which: slice | Int64Array) -> Values:
        stored = self._stored[which]
        array = self._how.to_array(copy_values(stored, self._how.num_bytes) if self._is_large else stored)
        return self._how.to_values(array) if self._by_sample else array


class _VariableColumn(GatheredColumn):
    """Values of any length are kept as they are stored, and decoded when they are asked for.

    Columns are decoded all at once, to be cut into batches afterwards, unless their values take far more memory then.
    """

    def __init__(self, name: str, how: Encoding, *, by_sample: bool) -> None:
        self._name = name
        self._decode: Callable[[Sequence[bytes]], Values] = how.decode_many if by_sample else how.to_column
        self._is_decoded_at_once = not by_sample and not how.expands
        self._groups: list[tuple[StoredValues, RowOrigins]] = []  # in the order of their places
        self._pieces: Any = []  # `StoredValues`
        self._places: Sequence[Int64Array] = ()
        self._values: Values | None = None

    def add(self, rows: FoundRows, places: Int64Array) -> None:  # noqa: ARG002
        self._groups.append((rows.pieces(self._name), rows.origins()))

    def finish(self, places: Sequence[Int64Array]) -> None:
        self._places = places
        self._pieces = _in_one([pieces for pieces, _ in self._groups], places)
        if self._is_decoded_at_once:
            self._values = self.take(slice(None))
            self._groups, self._pieces = [], []

    def take(self, which: slice | Int64Array) -> Values:
        if self._values is not None:
            return self._values[which]
        pieces = as_list(self._pieces[which])
        try:
            return self._decode(pieces)
        except Exception as error:
            origins = [origins.find(place) for pieces, origins in self._groups for place in range(len(pieces))]
            blamed = in_order(origins, self._places)[which]
            raise decode_error(self._decode, pieces, blamed, self._name, error) from error

    def so_far(self, places: Int64Array) -> Values:
        ends = np.cumsum([len(pieces) for pieces, _ in self._groups])
        self.finish(np.split(np.arange(len(places)), ends[:-1]))
        return self.take(slice(None))


def _in_one(groups: Sequence[StoredValues], places: Sequence[Int64Array]) -> StoredValues:
    """Put stored values of several groups at their places."""
    if len(groups) == 1:
        return groups[0]
    arrays = [pieces for pieces in groups if not isinstance(pieces, list)]
    if not arrays or len(arrays) < len(groups):
        return in_order([piece for pieces in groups for piece in as_list(pieces)], places)
    out = np.zeros(sum(map(len, arrays)), f"S{max(array.itemsize for array in arrays)}")
    for array, at in zip(arrays, places, strict=True):
        out[at] = array
    return out
