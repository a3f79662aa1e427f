"""What a source says of its shards without reading them: what is known of each, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What a source knows of a shard without reading its samples; None where it does not know."""

    shard_id: int
    shard_name: str
    num_rows: int | None = None
    byte_size: int | None = None
    url: str | None = None
    checksum: str | None = None


class ShardCount(int):
    """A number of shards that may also be called, as some libraries have it."""

    def __call__(self) -> int:
        """Return the number."""
        return int(self)
