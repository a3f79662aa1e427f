"""Settings that nobody need tune: from the index alone, so that the order never depends on the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.types import Int64Array

_MAX_LANES = 64
# With fewer shards in a lane, those that a lane shares with its neighbours cost more than a few percent of
# traffic.
_MIN_SHARDS_PER_LANE = 40
_SHARDS_OPEN = 256
_MIN_WINDOW = 8
# Shards with few samples are likely small: open more of them, until a window holds this many samples.
_MIN_WINDOW_SAMPLES = 1 << 12
_MAX_WINDOW = 1 << 10
# Where shards have any size, all that are open at once, over all lanes and streams, take about this much: as much as
# 256 shards of an MDS dataset do.
_BYTES_OPEN = 16 << 30


def default_lanes(lengths: Sequence[Int64Array], sizes: Sequence[Int64Array | None] = ()) -> int:
    """Cut as many lanes, in powers of two, as leave each at least 40 shards: 1 to 64.

    Where sizes count, no more than can each have some shards of the largest kind open.
    """
    num_shards = sum(int(np.count_nonzero(each)) for each in lengths)
    largest = max((_mean_size(each) for each in sizes if each is not None), default=1)
    lanes = 1
    while lanes < _MAX_LANES and num_shards >= 2 * lanes * _MIN_SHARDS_PER_LANE:
        if 2 * lanes * _MIN_WINDOW * largest > _BYTES_OPEN:
            break
        lanes *= 2
    return lanes


def default_window(lengths: Int64Array, num_lanes: int, num_streams: int, sizes: Int64Array | None = None) -> int:
    """Choose the shards that each lane keeps open of a stream: about 256 over all lanes and streams.

    Where sizes count, it is fewer if these would take too much room.
    """
    window = _default_window(lengths, num_lanes, num_streams)
    if sizes is None:
        return window
    room = _BYTES_OPEN // (num_lanes * num_streams * _mean_size(sizes))
    return min(window, max(_MIN_WINDOW // 2, room))


def _default_window(lengths: Int64Array, num_lanes: int, num_streams: int) -> int:
    window = max(_MIN_WINDOW, _SHARDS_OPEN // num_lanes)
    if (samples := _mean_length(lengths)) * window < _MIN_WINDOW_SAMPLES:
        window = min(_MAX_WINDOW, -(-_MIN_WINDOW_SAMPLES // samples))
    return max(_MIN_WINDOW // 2, -(-window // num_streams))


def window_of_block(lengths: Int64Array, block_size: int) -> int:
    """Choose the shards that a lane keeps open so that they hold about `block_size` samples."""
    return max(1, round(block_size / _mean_length(lengths)))


def _mean_size(sizes: Int64Array) -> int:
    return max(1, int(np.sum(sizes, dtype=np.int64)) // max(1, len(sizes)))


def _mean_length(lengths: Int64Array) -> int:
    num_shards = int(np.count_nonzero(lengths))
    return max(1, int(np.sum(lengths, dtype=np.int64)) // num_shards) if num_shards else 1
