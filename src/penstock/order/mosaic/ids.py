"""Arrays of sample numbers, half as wide as usual wherever the numbers allow it."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

# int32 or int64; -1 marks an empty slot.
IdArray: TypeAlias = npt.NDArray[np.signedinteger[Any]]

EMPTY = -1
# Work through long arrays in pieces that stay in the processor's cache.
PIECE = 1 << 18


def dtype_for(count: int) -> type[np.signedinteger[Any]]:
    """Pick the narrowest type that numbers `count` things from 0 and still holds `EMPTY`."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64


def look_up(positions: IdArray, *tables: IdArray | None) -> IdArray:
    """Replace every position, in place, by what the tables make of it one after the other; `EMPTY` stays.

    A table of None stands for the identity. In place, because the array may hold a whole epoch.
    """
    flat = positions.reshape(-1)
    for table in tables:
        if table is None:
            continue
        for begin in range(0, len(flat), PIECE):
            piece = flat[begin : begin + PIECE]
            is_empty = piece < 0
            piece[:] = table[piece]
            piece[is_empty] = EMPTY
    return positions
