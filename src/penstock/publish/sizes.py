"""When is a shard full, and what is it called: pure decisions about sizes and names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from penstock.errors import ConfigError
from penstock.index.model import MAX_SHARD_BYTES, Index
from penstock.outside_text import NAME_CHARACTERS, Bounded
from penstock.units import format_bytes, parse_bytes

DEFAULT_SIZE_LIMIT = 1 << 26
_SHARD_NAME = Bounded(r"shard\.(\d{5,})\.\w+", NAME_CHARACTERS)
_SHARD_FILE = Bounded(_SHARD_NAME.expression + r"(\.meta)?(\.\w+)?", NAME_CHARACTERS)


def check_size_limit(value: int | float | str | None) -> int | None:
    """Turn a limit as users write it into bytes; nothing or 0 means a single shard."""
    limit = parse_bytes(value) if value else 0
    if limit > MAX_SHARD_BYTES:
        raise ConfigError(
            f"size_limit {format_bytes(limit)} is too large: a shard must stay below 4 GB, so use at most"
            f" {MAX_SHARD_BYTES}"
        )
    return limit or None


def is_full(num_bytes: int, cost: int, size_limit: int | None) -> bool:
    """Return whether a shard is closed before a sample of this cost. It may just reach its limit.

    A shard that holds nothing yet is closed too: a sample larger than the limit leaves an empty shard before it,
    as in every dataset written so far.
    """
    return size_limit is not None and num_bytes + cost > size_limit


# Small enough for the allocator to hand out the same memory again and again.
_MAX_PENDING_BYTES = 1 << 16


def hand_over_at(num_bytes: int, size_limit: int | None) -> int:
    """Return up to which size of a shard samples may wait to be handed to its builder together.

    None of them may be too much for the shard: that is for the builder to say, sample by sample, and far from here.
    """
    return min(num_bytes + _MAX_PENDING_BYTES, size_limit or MAX_SHARD_BYTES, MAX_SHARD_BYTES // 2)


def shard_name(number: int, format_name: str) -> str:
    """Name a shard by its number."""
    return f"shard.{number:05}.{format_name}"


def next_number(index: Index) -> int:
    """Return the first number that no shard in the dataset's own folder has."""
    matches = (_SHARD_NAME.fullmatch(shard.name) for shard in index.shards)
    return max((int(match.group(1)) + 1 for match in matches if match), default=0)


def renumbered(index: Index) -> Index:
    """Name shards that lie in the dataset's own folder by their places in its index."""

    def rename(number: int, name: str) -> str:
        return f"shard.{number:05}.{name.split('.', 2)[2]}"

    return Index(tuple(shard.renamed(partial(rename, number)) for number, shard in enumerate(index.shards)))


def is_shard_file(name: str) -> bool:
    """Return whether a file in a dataset's folder is, by its name, a part of a shard, raw or compressed."""
    return _SHARD_FILE.fullmatch(name) is not None


# --- Shards of blocks of rows -----------------------------------------------------------------------------------

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
        """Return the number of rows to write next to a shard that has so many rows and bytes; 0 if it is full."""
        most = max(1, min(_MOST_ROWS_OF_BLOCK, int(_BLOCK_BYTES / max(bytes_per_row, 1))))
        if self.num_shards is not None and self.num_rows is not None:
            share = (shard + 1) * self.num_rows // self.num_shards - shard * self.num_rows // self.num_shards
            return min(most, share - rows) if shard < self.num_shards else 1
        room = int((self.max_bytes - stored) / max(bytes_per_row, 1))
        if rows and room < max(1, most // _LEAST_PART_OF_BLOCK, rows // 100):
            return 0
        return max(1, min(most, room))
