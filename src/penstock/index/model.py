"""The index of a dataset: plain values, whatever file they came from."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from penstock.index.shards import MAX_SHARD_BYTES, Column, FileInfo, ObjectSpan, Part, ShardInfo, ShardLayout
from penstock.quick_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.index.columns import ShardColumns
    from penstock.types import Int64Array

__all__ = ["MAX_SHARD_BYTES", "Column", "FileInfo", "Index", "ObjectSpan", "Part", "ShardInfo", "ShardLayout"]


@dataclass(frozen=True)
class Index:
    """The shards of a dataset, in the order that numbers its samples: objects if they are few, columns if many."""

    shards: Sequence[ShardInfo]

    @cached_property
    def columns(self) -> ShardColumns:
        """What the shards have, as arrays."""
        from penstock.index.columns import ShardColumns  # with NumPy, which the fetcher starts without

        return self.shards if isinstance(self.shards, ShardColumns) else ShardColumns.of(self.shards)

    @property
    def lengths(self) -> Int64Array:
        """The number of samples of each shard."""
        return self.columns.lengths

    @property
    def num_samples(self) -> int:
        """The number of samples of the dataset."""
        return int(self.lengths.sum())
