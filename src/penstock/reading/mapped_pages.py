"""Which open shards keep the pages that were read of them: within a budget of bytes, and not for long unused."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from penstock.processes import num_processors
from penstock.reading.memory_limit import memory_limit

if TYPE_CHECKING:
    from penstock.types import Int64Array

# A page that is read for the first time brings its neighbours with it, one of the table of offsets too.
_BYTES_PER_ROW = 128 << 10
# All readers of a node together keep up to this part of its memory mapped. It is memory of the system's file cache
# anyway, which it can take back; but it takes pages first that nobody has mapped.
_PART_OF_MEMORY = 1 / 2
# So many shards may lie idle with their pages, and others for so many uses.
_FEW_SHARDS = 32
_IDLE_USES = 64
_RECENT_USES = 4


def pages_budget(num_readers: int | None = None) -> int:
    """Say how many bytes one of the readers of a node may keep mapped; by default, one a processor is assumed."""
    return int(_PART_OF_MEMORY * memory_limit() / (num_readers or num_processors()))


class MappedPages:
    """Estimates how much is mapped of each open shard by the rows that were read of it, and says which should let go.

    A shuffled order comes back to all shards of its window, block after block. Where these are more than may stay
    mapped, the ones used last drop theirs: so the others are still there when their turn comes. If the ones used least
    recently did, none would be.
    """

    def __init__(self, sizes: Int64Array | None = None) -> None:
        self._sizes = sizes  # None: nothing of them is mapped
        self._unmapped: OrderedDict[int, int] = OrderedDict()  # bytes by shard, the one that was used last at the end
        self._used_at: dict[int, int] = {}
        self.num_uses = 0  # of any shards, counted by whoever uses them
        self.num_bytes = 0
        self.has_grown = False  # since it was last asked which should drop theirs

    def note(self, shard: int, num_rows: int) -> None:
        """Note that rows of a shard are read."""
        unmapped = self._unmapped
        left = unmapped.get(shard)
        if left is None:
            left = unmapped[shard] = self._size(shard)
            self.has_grown = True
        else:
            unmapped.move_to_end(shard)
        if left:
            new = min(left, num_rows * _BYTES_PER_ROW)
            self.num_bytes += new
            unmapped[shard] = left - new
            self.has_grown = True
        self._used_at[shard] = self.num_uses

    def forget(self, shard: int) -> None:
        """Note that nothing is mapped of a shard any more."""
        if shard in self._unmapped:
            self.num_bytes -= self._size(shard) - self._unmapped.pop(shard)
            del self._used_at[shard]

    def to_drop(self, max_bytes: int) -> list[int]:
        """Say which shards should have their pages taken away now; they count as unmapped then."""
        self.has_grown = False
        dropping: list[int] = []
        while self._unmapped:
            oldest = next(iter(self._unmapped))
            idle_uses = self.num_uses - self._used_at[oldest]
            if len(self._unmapped) > _FEW_SHARDS and idle_uses > _IDLE_USES:
                dropping.append(oldest)
            elif self.num_bytes > max_bytes:
                dropping.append(oldest if idle_uses > _RECENT_USES else next(reversed(self._unmapped)))
            else:
                break
            self.forget(dropping[-1])
        return dropping

    def _size(self, shard: int) -> int:
        return 0 if self._sizes is None else int(self._sizes[shard])
