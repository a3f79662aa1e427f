"""Rows of a shard: where they lie, and which ones are asked for."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from penstock.errors import CorruptShardError, SampleIndexError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.types import Int64Array

# The raw bytes of one part: a mapped file, or memory that a part was unpacked to; both slice to `bytes`.
ShardBytes: TypeAlias = mmap.mmap | bytes
# Files that other programs wrote may be mapped in part. `np.frombuffer` takes a span, too, but it slices to a view.
FileBytes: TypeAlias = ShardBytes | memoryview
Rows: TypeAlias = "Sequence[int] | Int64Array"


def table_bytes(num_samples: int) -> int:
    """Return the size of the table that begins an MDS shard and a meta file: a count, one offset more than samples."""
    return 4 + 4 * (num_samples + 1)


def max_samples(num_bytes: int) -> int:
    """Return how many samples a file that holds the table can hold: the number of them is no more to be trusted."""
    return max(0, num_bytes // 4 - 2)


def read_offsets(
    data: ShardBytes, num_samples: int, *, begin: int | None, end: int, shard: str
) -> npt.NDArray[np.uint32]:
    """Read and check the table: the declared count, never descending, from `begin` (if given) to `end`."""
    offsets = view_offsets(data, num_samples, begin=begin, end=end, shard=shard)
    if (offsets[1:] < offsets[:-1]).any():  # a sample would end before it begins
        raise CorruptShardError(f"{shard} has sample offsets that decrease", shard=shard)
    return offsets


def view_offsets(
    data: ShardBytes, num_samples: int, *, begin: int | None, end: int, shard: str
) -> npt.NDArray[np.uint32]:
    """Return the table as it lies in the shard; only its length, its first and its last offset are checked."""
    size = table_bytes(num_samples)
    if len(data) < size:
        raise CorruptShardError(f"{shard} is too short to hold the offsets of {num_samples} samples", shard=shard)
    count, *_ = np.frombuffer(data, "<u4", 1).tolist()
    if count != num_samples:
        raise CorruptShardError(f"{shard} holds {count} samples, but the index says {num_samples}", shard=shard)
    offsets: npt.NDArray[Any] = np.frombuffer(data, "<u4", num_samples + 1, 4)
    first, last = int(offsets[0]), int(offsets[-1])
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


def check_rows(rows: Rows, num_samples: int, shard: str) -> Int64Array:
    """Turn row numbers into an array, all of them within the shard."""
    if len(rows) == 1 and type(rows[0]) is int and 0 <= rows[0] < num_samples:
        return np.array(rows, np.int64)  # samples that are read one by one need not be compared as arrays
    if isinstance(rows, range):
        if len(rows) and not (0 <= rows[0] < num_samples and 0 <= rows[-1] < num_samples):
            raise _outside(shard, num_samples, min(rows[0], rows[-1]), max(rows[0], rows[-1]))
        return np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)
    try:
        numbers = np.asarray(rows, dtype=np.int64)
    except OverflowError as error:
        raise SampleIndexError(
            f"{shard} has rows 0 to {num_samples - 1}, and you asked for others", shard=shard
        ) from error
    # As unsigned numbers, negative ones are too large as well: one comparison does.
    if len(numbers) and numbers.view(np.uint64).max() >= num_samples:
        raise _outside(shard, num_samples, int(numbers.min()), int(numbers.max()))
    return numbers


def _outside(shard: str, num_samples: int, lowest: int, highest: int) -> SampleIndexError:
    return SampleIndexError(
        f"{shard} has rows 0 to {num_samples - 1}, and you asked for {lowest} to {highest}", shard=shard
    )
