"""Pieces of work: some shards of a source, in order, whose samples become one folder of MDS shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.sources.base import ShardedSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.sources.iterators import SampleIterator
    from penstock.sources.shard_info import ShardInfo
    from penstock.types import Sample

_BYTES_OF_ROW = 1024  # where only rows are known


def plan_parts(shards: Sequence[ShardInfo | None], max_bytes: int) -> list[tuple[int, int]]:
    """Cut shards into runs of about so many stored bytes, as (first, end): the same for the same shards.

    A shard of unknown size is a part of its own, and so is one that is larger.
    """
    parts: list[tuple[int, int]] = []
    first, filled = 0, 0.0
    for number, shard in enumerate(shards):
        share = _share(shard, max_bytes)
        if number > first and filled + share > 1:
            parts.append((first, number))
            first, filled = number, 0.0
        filled += share
    return [*parts, (first, len(shards))] if shards else parts


def _share(shard: ShardInfo | None, max_bytes: int) -> float:
    if shard is None:
        return 1.0
    if shard.byte_size is not None:
        return shard.byte_size / max_bytes
    return 1.0 if shard.num_rows is None else shard.num_rows * _BYTES_OF_ROW / max_bytes


def part_name(number: int) -> str:
    """Name the folder of a part, so that names sort like numbers."""
    return f"{number:06}"


class SelectedShards(ShardedSource):
    """Some shards of a source, in order."""

    def __init__(self, source: ShardedSource, first: int, end: int) -> None:
        self._source, self._first = source, first
        self._names = list(source.shard_names[first:end])

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards."""
        return self._names

    @property
    def fingerprint(self) -> str | None:
        """That of the source, with which shards these are."""
        inner = self._source.fingerprint
        return None if inner is None else f"{inner}-shards-{self._first}-{len(self._names)}"

    @property
    def is_endless(self) -> bool:
        """Whether the source never ends."""
        return self._source.is_endless

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        """Give what the source knows of a shard."""
        return self._source.get_shard_info(shard_name)

    def open_shard_at_row(self, shard_name: str, row: int = 0) -> SampleIterator:
        """Open a shard of the source."""
        return self._source.open_shard_at_row(shard_name, row)

    @property
    def has_random_rows(self) -> bool:
        """Whether the source reads any rows."""
        return self._source.has_random_rows

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:
        """Give the samples at these rows of a shard."""
        return self._source.read_rows(shard_name, rows)

    def close(self) -> None:
        """Close the source."""
        self._source.close()
