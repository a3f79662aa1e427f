"""How many rows are written next: pure decisions about the sizes of shards and of the blocks in them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ConfigError

PROBE_ROWS = 256  # from which columns and the size of a row are learned
_BLOCK_BYTES = 32 << 20
_MOST_ROWS_OF_BLOCK = 16_384
_LEAST_PART_OF_BLOCK = 8  # what is left of a shard is filled only if it takes this part of a block


@dataclass(frozen=True, slots=True)
class ShardSizes:
    """When a shard is full: at about so many stored bytes, or at its share of a known number of rows."""

    max_bytes: int
    num_shards: int | None = None
    num_rows: int | None = None

    def __post_init__(self) -> None:
        if self.num_shards is None:
            return
        if self.num_rows is None:
            raise ConfigError(
                "num_shards= needs to know how many rows there will be: pass num_rows=, or max_shard_size= instead"
            )
        if self.num_rows < self.num_shards:
            raise ConfigError(f"{self.num_rows} rows cannot fill num_shards={self.num_shards} shards")

    def next_block(self, shard: int, rows: int, stored: int, bytes_per_row: float) -> int:
        """Give the number of rows to write next to a shard that has so many rows and bytes; 0 if it is full."""
        most = max(1, min(_MOST_ROWS_OF_BLOCK, int(_BLOCK_BYTES / max(bytes_per_row, 1))))
        if self.num_shards is not None and self.num_rows is not None:
            share = (shard + 1) * self.num_rows // self.num_shards - shard * self.num_rows // self.num_shards
            return min(most, share - rows) if shard < self.num_shards else 1
        room = int((self.max_bytes - stored) / max(bytes_per_row, 1))
        if rows and room < max(1, most // _LEAST_PART_OF_BLOCK, rows // 100):
            return 0
        return max(1, min(most, room))
