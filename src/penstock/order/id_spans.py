"""Sample ids and where they live: id ↔ (shard, row), for whole arrays at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.types import Int64Array


class IdSpans:
    """Shards laid end to end: shard k holds the ids `starts[k]` to `starts[k + 1]`. Empty shards hold none."""

    __slots__ = ("num_samples", "starts")

    def __init__(self, lengths: Sequence[int] | Int64Array) -> None:
        sizes = np.asarray(lengths, dtype=np.int64)
        if sizes.ndim != 1 or (sizes < 0).any():
            raise ConfigError("shard lengths must be a flat list of numbers, none of them negative")
        self.starts: Int64Array = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=self.starts[1:])
        self.num_samples = int(self.starts[-1])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def shard_of(self, sample_id: int) -> int:
        """Return the shard of one id, which must be in range."""
        return int(self.starts.searchsorted(sample_id, side="right")) - 1

    def locate(self, ids: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the shard and the row within it of each id; ids must be in range."""
        # side="right" steps over empty shards: of equal starts, the last one holds the sample.
        shards = np.searchsorted(self.starts, ids, side="right").astype(np.int64) - 1
        return shards, ids - self.starts[shards]
