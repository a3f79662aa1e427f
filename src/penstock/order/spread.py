"""Dealing the rows of shards out over time: part j of n rows, found without listing the other parts.

Rows are taken in tiles of as many rows as there are parts, and every part gets one row of each tile. Which
one is rotated by a hash of the tile, and parts next to each other in time are far apart in a tile. So
neighbours in a shard never share a part, parts are equal up to one row, and each part is spread evenly over
its whole shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from penstock.order.keys import UInt64Array
    from penstock.types import Int64Array

_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


def rows_before(num_rows: Int64Array, parts: Int64Array, part: Int64Array, bits: UInt64Array) -> Int64Array:
    """Count the rows in the parts before a part, for many shards at once, with random bits for each."""
    # The phase decides which parts get one row more, so that short shards do not all come early.
    phase = (bits >> np.uint64(40)).astype(np.int64) * parts >> 24
    return (part * num_rows + phase) // parts


def rows_of_part(
    num_rows: Int64Array,
    parts: Int64Array,
    part: Int64Array,
    bits: UInt64Array,
    chosen: tuple[Int64Array, Int64Array] | None = None,
) -> tuple[Int64Array, Int64Array]:
    """List the rows of one part of each shard: how many from each, and the rows, shard after shard.

    `chosen`, in the same form, picks members of the parts by their number; without it all are listed.
    """
    before = rows_before(num_rows, parts, part, bits)
    num_tiles = num_rows // parts
    if chosen is None:
        counts = rows_before(num_rows, parts, part + 1, bits) - before
        firsts = np.cumsum(counts) - counts
        members = np.arange(int(counts.sum()), dtype=np.int64)
        members -= np.repeat(firsts, counts)
        from_shard = np.flatnonzero(counts > num_tiles)
        extra = firsts[from_shard] + num_tiles[from_shard]
    else:
        counts, members = chosen
        extra = np.flatnonzero(members == np.repeat(num_tiles, counts))
        from_shard = np.repeat(np.arange(len(counts)), counts)[extra]
    is_uniform = len(parts) > 0 and bool((parts == parts[0]).all())
    width = parts[0] if is_uniform else np.repeat(parts, counts)
    rows = _rotations(members, width, np.repeat(bits, counts))
    rows += np.repeat(_offsets(parts, part, bits), counts)
    # Both summands are below the width, so one conditional subtraction is the remainder.
    np.minimum(rows, rows - width.astype(np.uint64), out=rows)
    listed = rows.view(np.int64)
    listed += members * width
    # What is left of a shard after its last whole tile goes out one row at a time.
    last = num_tiles * parts + before - part * num_tiles
    listed[extra] = last[from_shard]
    return counts, listed


def _rotations(tiles: Int64Array, width: Int64Array, bits: UInt64Array) -> UInt64Array:
    """Hash each tile of each shard to 0 … width − 1."""
    mixed = tiles.view(np.uint64) * _STRIDE
    mixed += bits
    mixed ^= mixed >> _HALF
    mixed *= _MIX
    mixed >>= _HALF
    mixed *= width.astype(np.uint64)
    mixed >>= _HALF
    return mixed


def _offsets(parts: Int64Array, part: Int64Array, bits: UInt64Array) -> UInt64Array:
    """Return each part its own place in an unrotated tile, by a random multiplier prime to their number."""
    multiplier = 1 + ((bits & np.uint64(0xFFFFFF)).astype(np.int64) * parts >> 24)
    while True:
        shared = np.gcd(multiplier, parts) > 1
        if not shared.any():
            return (multiplier * part % parts).astype(np.uint64)
        multiplier += shared
