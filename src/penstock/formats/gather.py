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


def gather(data: ShardBytes, begins: Int64Array, ends: Int64Array) -> Pieces:
    """Copy the bytes of values from where they begin to where they end."""
    short = _gather_short(data, begins, ends - begins)
    if short is not None:
        return short
    return [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def as_list(pieces: Pieces) -> list[bytes]:
    """Give each value's bytes as an object of its own."""
    return pieces if isinstance(pieces, list) else pieces.tolist()


def _gather_short(data: ShardBytes, begins: Int64Array, sizes: Int64Array) -> npt.NDArray[np.bytes_] | None:
    """Copy short values, or values of equal length, into one array, if NumPy's byte strings can hold them.

    These end before the zero bytes at their end, so a value that ends in one does not fit.
    """
    shortest, longest = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
    if not longest or longest > (_MOST_BYTES_IF_EQUAL if shortest == longest else _MOST_BYTES):
        return None
    items = view_items(data, "S", longest)
    if int(begins.max()) >= len(items):  # the last value of the shard, and a short one
        return None
    gathered: npt.NDArray[np.bytes_] = items[begins]
    grid = gathered.view(np.uint8).reshape(len(sizes), longest)
    if shortest < longest:
        grid *= np.arange(longest, dtype=np.uint8) < sizes.astype(np.uint8)[:, None]
    ends_in_zero = grid[np.arange(len(sizes)), sizes - 1] == 0
    return None if (ends_in_zero & (sizes > 0)).any() else gathered
