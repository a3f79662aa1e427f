"""Removes one shard from the cache because a user says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cache.cleanup import PATIENCE_S, Outcome, Remover
from penstock.cache.contents import read_contents
from penstock.cachedir.layout import plain_name
from penstock.errors import CacheError

if TYPE_CHECKING:
    from pathlib import Path

_KEPT = {
    Outcome.IN_USE: "it is being read",
    Outcome.BUSY: "it is being fetched",
    Outcome.PINNED: "it is pinned",
}


def evict(directory: Path, name: str) -> None:
    """Remove what was fetched of a shard; one that is read, fetched or pinned is an error."""
    remover = Remover()
    for copy in read_contents(directory).copies:
        if plain_name(copy.record.name) == name:
            outcome = remover.remove(copy, PATIENCE_S)
            if outcome in _KEPT:
                raise CacheError(f"cannot evict {name} from {directory}: {_KEPT[outcome]}", shard=name)
