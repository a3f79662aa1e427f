"""The table of sample offsets that begins an MDS shard and the meta file of a text shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import CorruptShardError

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.formats.base import ShardBytes
    from penstock.types import Int64Array


def table_bytes(num_samples: int) -> int:
    """Give the size of the table: a count, then one offset more than there are samples."""
    return 4 + 4 * (num_samples + 1)


def max_samples(num_bytes: int) -> int:
    """Say how many samples a file that holds the table can hold: the number of them is no more to be trusted."""
    return num_bytes // 4 - 2


def read_offsets(
    data: ShardBytes, num_samples: int, *, begin: int | None, end: int, shard: str
) -> npt.NDArray[np.uint32]:
    """Read and check the table: the declared count, never descending, from `begin` (if given) to `end`."""
    size = table_bytes(num_samples)
    if len(data) < size:
        raise CorruptShardError(f"{shard} is too short to hold the offsets of {num_samples} samples", shard=shard)
    count, *_ = np.frombuffer(data, "<u4", 1).tolist()
    if count != num_samples:
        raise CorruptShardError(f"{shard} holds {count} samples, but the index says {num_samples}", shard=shard)
    offsets: npt.NDArray[Any] = np.frombuffer(data, "<u4", num_samples + 1, 4)
    first, last = int(offsets[0]), int(offsets[-1])
    if (offsets[1:] < offsets[:-1]).any():
        raise CorruptShardError(f"{shard} has sample offsets that descend", shard=shard)
    if (begin is not None and first < begin) or last != end:
        raise CorruptShardError(
            f"{shard} has samples from byte {first} to {last}, but they must end at {end}"
            + ("" if begin is None else f" and begin at {begin} or later"),
            shard=shard,
        )
    return offsets


def write_offsets(ends: Int64Array, begin: int) -> bytes:
    """Write the table for samples that follow one another from `begin`, given where each ends counted from there."""
    offsets = np.zeros(len(ends) + 2, dtype=np.int64)
    offsets[0] = len(ends)
    offsets[1] = begin
    offsets[2:] = ends + begin
    return offsets.astype("<u4").tobytes()
