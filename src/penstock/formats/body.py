"""The samples of a shard in the making: encoded records, gathered in chunks of memory that are used again and again.

Touching fresh memory for every shard would cost more than copying the samples does.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from penstock.codecs.unpack import new_memory
from penstock.errors import ShardTooLargeError
from penstock.index.shards import MAX_SHARD_BYTES
from penstock.units import format_bytes

if TYPE_CHECKING:
    import mmap
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from penstock.types import Int64Array

# Small enough for the allocator to hand out the same memory again and again.
_SPILL_BYTES = 1 << 16
_DEFAULT_CHUNK_BYTES = 1 << 23
_MAX_CHUNK_BYTES = 1 << 28


class ChunkPool:
    """Chunks that shards of one writer take and give back. Safe between threads.

    A chunk that holds a whole shard of the given size limit spares a copy before compression, and lets background
    threads do their work in one go. What is never written of it takes no memory.
    """

    def __init__(self, size_limit: int | None = None) -> None:
        room = _DEFAULT_CHUNK_BYTES if size_limit is None else size_limit + size_limit // 2 + _SPILL_BYTES
        self.chunk_bytes = min(room, _MAX_CHUNK_BYTES)
        self._free: deque[mmap.mmap] = deque()

    def take(self) -> mmap.mmap:
        """Return a chunk with any content."""
        try:
            return self._free.pop()
        except IndexError:
            return new_memory(self.chunk_bytes)

    def give_back(self, chunks: list[mmap.mmap]) -> None:
        """Take back chunks that are no longer looked at."""
        self._free.extend(chunks)


class BodyBuilder:
    """The part of a shard builder that does not depend on its format: records one after another.

    Each costs its length and a fixed overhead against the size of the shard. `num_bytes` is what counts against a size
    limit before the first record, `uncounted` what takes room besides. `front_bytes` is room in front of the first
    record, for what can be told only after the last.
    """

    sample_overhead: int

    def __init__(self, pool: ChunkPool, *, num_bytes: int, uncounted: int = 0, front_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._pool = pool
        self._overhead = self.sample_overhead
        self._max_bytes = MAX_SHARD_BYTES - uncounted
        self._spill_at = min(num_bytes + _SPILL_BYTES, self._max_bytes)
        self._pending: list[bytes] = []
        self._sizes: list[int] = []
        self._chunks: list[mmap.mmap] = []
        self._front_bytes = min(front_bytes, pool.chunk_bytes // 3)
        self._used = 0  # of the last chunk

    @property
    def num_samples(self) -> int:
        """The number of samples so far."""
        return len(self._sizes) + len(self._pending)

    def append(self, record: bytes) -> None:
        """Add a record, unless the shard would outgrow its 32-bit offsets."""
        total = self.num_bytes + len(record) + self._overhead
        if total > self._spill_at:
            self._spill(total)
        self._pending.append(record)
        self.num_bytes = total

    def extend(self, records: Sequence[bytes]) -> None:
        """Add records and copy them at once, unless the shard would outgrow its 32-bit offsets: then none of them."""
        total = self.num_bytes + sum(map(len, records)) + self._overhead * len(records)
        self._check(total)
        self._pending += records
        self.num_bytes = total
        self._spill(total)

    def extend_joined(self, records: bytes, sizes: Int64Array) -> None:
        """Add records that are joined already, each of its size, unless the shard would outgrow its offsets."""
        total = self.num_bytes + len(records) + self._overhead * len(sizes)
        self._spill(total)
        self._sizes.extend(sizes.tolist())
        self._copy(records)
        self.num_bytes = total

    def ends(self) -> Int64Array:
        """Return where each record ends, counted from the first."""
        self._spill(self.num_bytes)
        return np.cumsum(self._sizes, dtype=np.int64)

    def pieces(self, front: bytes) -> list[Buffer]:
        """Return what stands in front and the records as one run of bytes, in pieces; valid until `release`."""
        self._spill(self.num_bytes)
        if not self._chunks:
            return [front]
        begin = self._front_bytes - len(front)
        chunks = [memoryview(chunk) for chunk in self._chunks]
        chunks[-1] = chunks[-1][: self._used]
        if begin < 0:
            return [front, chunks[0][self._front_bytes :], *chunks[1:]]
        chunks[0][begin : self._front_bytes] = front
        return [chunks[0][begin:], *chunks[1:]]

    def release(self) -> None:
        """Release the memory; the shard is written."""
        self._pool.give_back(self._chunks)
        self._chunks = []

    def _check(self, total: int) -> None:
        if total > self._max_bytes:
            raise ShardTooLargeError(
                f"with this sample, the shard would grow to {format_bytes(total)}, but a shard must stay below 4"
                " GB: lower size_limit"
            )

    def _spill(self, total: int) -> None:
        self._check(total)
        self._sizes.extend(map(len, self._pending))
        self._copy(b"".join(self._pending))
        self._pending.clear()
        self._spill_at = min(total + _SPILL_BYTES, self._max_bytes)

    def _copy(self, records: bytes) -> None:
        data = memoryview(records)
        while data:
            if not self._chunks or self._used == len(self._chunks[-1]):
                self._used = 0 if self._chunks else self._front_bytes
                self._chunks.append(self._pool.take())
            chunk = self._chunks[-1]
            size = min(len(data), len(chunk) - self._used)
            chunk[self._used : self._used + size] = data[:size]
            self._used += size
            data = data[size:]
