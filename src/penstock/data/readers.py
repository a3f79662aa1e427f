"""Open shards, kept while there is room: opening one costs more than reading from it."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.formats.base import ShardReader

# Mapped files cost a descriptor and address space, not memory.
_MOST_OPEN = 64


class OpenShards:
    """The shards used last. Those that were unpacked into memory count their bytes against a limit."""

    def __init__(self, open_shard: Callable[[int], ShardReader], memory_bytes: list[int], max_bytes: int) -> None:
        self._open = open_shard
        self._memory_bytes = memory_bytes
        self._max_bytes = max_bytes
        self._used_bytes = 0
        self._readers: OrderedDict[int, ShardReader] = OrderedDict()

    def get(self, shard: int) -> ShardReader:
        """Give an open shard; it stays open at least until the next call."""
        if shard in self._readers:
            self._readers.move_to_end(shard)
            return self._readers[shard]
        self._make_room(self._memory_bytes[shard])
        reader = self._open(shard)
        self._readers[shard] = reader
        self._used_bytes += self._memory_bytes[shard]
        return reader

    def close(self) -> None:
        """Close all."""
        while self._readers:
            self._close_oldest()

    def _make_room(self, num_bytes: int) -> None:
        while self._readers and (
            len(self._readers) >= _MOST_OPEN or (self._used_bytes + num_bytes > self._max_bytes and self._used_bytes)
        ):
            self._close_oldest()

    def _close_oldest(self) -> None:
        shard, reader = self._readers.popitem(last=False)
        self._used_bytes -= self._memory_bytes[shard]
        reader.close()
