"""Large indexes, parsed once on each node: later processes map their columns instead of parsing them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._version import __version__
from penstock.cachedir.once import keep_in_files
from penstock.index.columns import ShardColumns
from penstock.index.model import Index

if TYPE_CHECKING:
    from collections.abc import Callable

# Some hundred shards. Smaller indexes are parsed in a moment.
_LARGE_BYTES = 1 << 17
# Those of the datasets that a machine reads by turns, mixes of many streams included; each takes as much as its index.
_MAX_KEPT = 256


def keep_index(name: str, num_bytes: int, parse: Callable[[], Index]) -> Index:
    """Return the index of a name that stands for its very bytes, and of so many bytes, parsing it only if it is new."""
    if num_bytes < _LARGE_BYTES:
        return parse()
    data = keep_in_files(
        f"{__version__}-{name}", lambda: parse().columns.dump(), min_values=0, kind="index", max_files=_MAX_KEPT
    )
    return Index(ShardColumns.load(data))
