"""A source that kills its readers: in a file of its own, because processes that load it start quickly so."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from penstock import MemoryShardedSource

if TYPE_CHECKING:
    from pathlib import Path


class Deadly(MemoryShardedSource):
    """Kills the process that reads its third shard, once or always; not the one that plans."""

    def __init__(self, marker: Path | None) -> None:
        super().__init__([{"n": n} for n in range(40)], num_shards=4, fingerprint="deadly")
        self._marker, self._home = marker, os.getpid()

    def _read_chunks(self, shard_name: str, row: int) -> Any:
        is_there = shard_name.endswith(":2") and os.getpid() != self._home
        if is_there and (self._marker is None or not self._marker.exists()):
            if self._marker is not None:
                self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._read_chunks(shard_name, row)
