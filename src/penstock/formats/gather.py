"""Values that lie anywhere in memory → their bytes, by as few steps of Python as their lengths allow."""

from __future__ import annotations

import ctypes
import platform
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from penstock.formats.base import ShardBytes
    from penstock.types import Int64Array

    # Either is a value of bytes for each; an array of NumPy's byte strings is one step for all of them.
    StoredValues: TypeAlias = npt.NDArray[np.bytes_] | list[bytes]
    Values: TypeAlias = npt.NDArray[Any] | list[Any]

# NumPy waits for many places of memory at once, where a step of Python waits for one after the other; but it copies
# each value twice, and blanks what a shorter one does not fill. Measured: it pays up to these lengths.
_MOST_BYTES_IF_EQUAL = 1024
_MOST_BYTES = 96

# No array begins at address 0. The first page of a process is never mapped, so nothing is lost before this one.
_ORIGIN = 1 << 12
# What the memory of a process is mapped to, unless it asks for more: 47 bits on x86-64, 48 on ARM.
_ADDRESSES = 1 << (47 if platform.machine() in ("x86_64", "AMD64") else 48)
_LARGEST_ITEM = (1 << 62) // _ADDRESSES  # NumPy counts the bytes of an array as if no two items shared any


def view_items(data: ShardBytes, kind: str, num_bytes: int) -> npt.NDArray[Any]:
    """View a shard as overlapping items, one beginning at each byte: any values of equal length are one gather away."""
    length = max(len(data) - num_bytes + 1, 0)
    return np.ndarray((length,), f"{kind}{num_bytes}", data if length else b"", 0, (1,))


@lru_cache(maxsize=256)
def view_memory(kind: str, num_bytes: int) -> npt.NDArray[Any]:
    """View all memory of this process as overlapping items, so that values of many shards are one gather away.

    Items are found by their places (`place_of`). Nothing but the caller keeps anybody from asking for a place where
    nothing is mapped, which ends the process: only ask for what was checked to lie within bytes that are held.
    """
    length = _ADDRESSES - _ORIGIN
    return np.ndarray((length - num_bytes,), f"{kind}{num_bytes}", _memory(), 0, (1,))


def copy_values(begins: Int64Array, num_bytes: int) -> npt.NDArray[Any]:
    """Copy values of so many bytes, which begin at these places of memory (`place_of`), as void items."""
    if num_bytes <= _LARGEST_ITEM:
        stored: npt.NDArray[Any] = view_memory("V", num_bytes)[begins]
        return stored
    memory, copied = view_memory("u", 1), np.empty((len(begins), num_bytes), np.uint8)
    for value, begin in zip(copied, begins.tolist(), strict=True):
        value[:] = memory[begin : begin + num_bytes]
    return copied.view(f"V{num_bytes}").reshape(-1)


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


def place_of(data: ShardBytes) -> int:
    """Say where bytes lie, as `view_memory` numbers places; true for as long as they are held."""
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address - _ORIGIN


class ValueGatherer:
    """Copies values of one column, of which the lengths of the shortest and the longest are known.

    All at once, if they are short or of equal length and NumPy's byte strings can hold them: these end before the zero
    bytes at their end.
    """

    def __init__(self, data: ShardBytes, shortest: int, longest: int) -> None:
        self._data = data
        self._are_equal = shortest == longest
        self._items = view_items(data, "S", longest) if is_gathered(shortest, longest) else None

    def gather(self, begins: Int64Array, ends: Int64Array) -> StoredValues:
        """Copy the bytes of values from where they begin to where they end."""
        if self._items is not None:
            try:
                gathered = gather_strings(self._items, begins, None if self._are_equal else ends - begins)
            except IndexError:  # the last value of the shard, and too short: the longest would not fit in its place
                gathered = None
            if gathered is not None:
                return gathered
        data = self._data
        return [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def is_gathered(shortest: int, longest: int) -> bool:
    """Tell whether values of such lengths are better copied by NumPy than one by one."""
    return 0 < longest <= (_MOST_BYTES_IF_EQUAL if shortest == longest else _MOST_BYTES)


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
) -> StoredValues:
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


def as_list(pieces: StoredValues) -> list[bytes]:
    """Give each value's bytes as an object of its own."""
    return pieces if isinstance(pieces, list) else pieces.tolist()


def in_order(items: list[Any], places: Sequence[Int64Array]) -> list[Any]:
    """Put items that were gathered group by group at their places."""
    if not items:
        return items
    numbers = np.empty(len(items), dtype=np.int64)
    numbers[np.concatenate(places)] = np.arange(len(items))
    return list(map(items.__getitem__, numbers.tolist()))


class GatheredColumn(Protocol):
    """Takes stored values, those of some shards after those of others, then gives the values of some rows."""

    def add(self, rows: Any, places: Int64Array) -> None:
        """Take the values of rows that were found, which belong to these places, in rising order."""
        ...

    def finish(self, places: Sequence[Int64Array]) -> None:
        """All are there, those of each `add` at these places: find out whether they can be read."""
        ...

    def take(self, begin: int, end: int | None) -> Values:
        """Give the values of all rows from one to another, once all are there."""
        ...

    def so_far(self, places: Int64Array) -> Values:
        """Give the values that were added, which is at these places."""
        ...


class ColumnKind(ABC):
    """How the values of a column are gathered, if not as stored bytes that an encoding decodes.

    Columns of shards are gathered together if their kinds are equal.
    """

    @abstractmethod
    def begin(self, name: str, num_rows: int, *, by_sample: bool) -> GatheredColumn:
        """Begin a column of so many rows; `by_sample`, as a list of values for samples."""
