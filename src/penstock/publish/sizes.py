"""When is a shard full: pure decisions about sizes and names."""

from __future__ import annotations

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
    """Tell whether a shard is closed before a sample of this cost. It may just reach its limit.

    A shard that holds nothing yet is closed too: a sample larger than the limit leaves an empty shard before it,
    as in every dataset written so far.
    """
    return size_limit is not None and num_bytes + cost > size_limit


# Small enough for the allocator to hand out the same memory again and again.
_MAX_PENDING_BYTES = 1 << 16


def hand_over_at(num_bytes: int, size_limit: int | None) -> int:
    """Say up to which size of a shard samples may wait to be handed to its builder together.

    None of them may be too much for the shard: that is for the builder to say, sample by sample, and far from here.
    """
    return min(num_bytes + _MAX_PENDING_BYTES, size_limit or MAX_SHARD_BYTES, MAX_SHARD_BYTES // 2)


def shard_name(number: int, format_name: str) -> str:
    """Name a shard by its number."""
    return f"shard.{number:05}.{format_name}"


def next_number(index: Index) -> int:
    """Give the first number that no shard in the dataset's own folder has."""
    matches = (_SHARD_NAME.fullmatch(shard.name) for shard in index.shards)
    return max((int(match.group(1)) + 1 for match in matches if match), default=0)


def renumbered(index: Index) -> Index:
    """Name shards that lie in the dataset's own folder by their places in its index."""

    def rename(number: int, name: str) -> str:
        return f"shard.{number:05}.{name.split('.', 2)[2]}"

    return Index(tuple(shard.renamed(partial(rename, number)) for number, shard in enumerate(index.shards)))


def is_shard_file(name: str) -> bool:
    """Tell whether a file in a dataset's folder is, by its name, a part of a shard, raw or compressed."""
    return _SHARD_FILE.fullmatch(name) is not None
