"""Values that lie anywhere in a shard → their bytes, by as few steps of Python as their lengths allow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from penstock.formats.base import ShardBytes
    from penstock.types import Int64Array

    # Either is a value of bytes for each; an array of NumPy's byte strings is one step for all of them.
    Pieces: TypeAlias = npt.NDArray[np.bytes_] | list[bytes]
    Values: TypeAlias = npt.NDArray[Any] | list[Any]

# NumPy waits for many places of memory at once, where a step of Python waits for one after the other; but it copies
# each value twice, and blanks what a shorter one does not fill. Measured: it pays up to these lengths.
_MOST_BYTES_IF_EQUAL = 1024
_MOST_BYTES = 96


def view_items(data: ShardBytes, kind: str, num_bytes: int) -> npt.NDArray[Any]:
    """View a shard as overlapping items, one beginning at each byte: any values of equal length are one gather away."""
    length = max(len(data) - num_bytes + 1, 0)
    return np.ndarray((length,), f"{kind}{num_bytes}", data if length else b"", 0, (1,))


class ValueGatherer:
    """Copies values of one column, of which the lengths of the shortest and the longest are known.

    All at once, if they are short or of equal length and NumPy's byte strings can hold them: these end before the zero
    bytes at their end.
    """

    def __init__(self, data: ShardBytes, shortest: int, longest: int) -> None:
        self._data = data
        self._are_equal = shortest == longest
        most = _MOST_BYTES_IF_EQUAL if self._are_equal else _MOST_BYTES
        self._items = view_items(data, "S", longest) if 0 < longest <= most else None

    def gather(self, begins: Int64Array, ends: Int64Array) -> Pieces:
        """Copy the bytes of values from where they begin to where they end."""
        gathered = self._gather_at_once(begins, ends)
        if gathered is not None:
            return gathered
        data = self._data
        return [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]

    def _gather_at_once(self, begins: Int64Array, ends: Int64Array) -> npt.NDArray[np.bytes_] | None:
        if self._items is None:
            return None
        try:
            gathered: npt.NDArray[np.bytes_] = self._items[begins]
        except IndexError:  # the last value of the shard, and too short: the longest would not fit in its place
            return None
        grid = gathered.view(np.uint8).reshape(len(begins), gathered.itemsize)
        if self._are_equal:
            last_bytes = grid[:, -1]
        else:
            sizes = ends - begins
            grid *= np.arange(gathered.itemsize, dtype=np.uint8) < sizes.astype(np.uint8)[:, None]
            last_bytes = grid[np.arange(len(sizes)), sizes - 1] | (sizes == 0)
        return gathered if last_bytes.all() else None


def as_list(pieces: Pieces) -> list[bytes]:
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
    """Takes the stored values of shard after shard, then gives the values of some rows."""

    def add(self, reader: Any, rows: Int64Array, places: Int64Array) -> None:
        """Take some rows of a shard."""
        ...

    def finish(self, places: Sequence[Int64Array]) -> None:
        """All are there, of each shard at these places: find out whether they can be read."""
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
