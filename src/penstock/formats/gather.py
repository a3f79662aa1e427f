"""Values that lie anywhere in a shard → their bytes, by as few steps of Python as their lengths allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy.typing as npt

    from penstock.formats.base import ShardBytes
    from penstock.types import Int64Array

    # Either is a value of bytes for each; an array of NumPy's byte strings is one step for all of them.
    Pieces: TypeAlias = npt.NDArray[np.bytes_] | list[bytes]

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
