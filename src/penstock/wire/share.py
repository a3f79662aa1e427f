"""What a process may keep open of a cache that others share: the fetcher says so, and those who keep shards obey."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Share:
    """How much may stay open between two uses."""

    num_bytes: int | None = None  # None: as much as one likes
    is_tight: bool = False  # somebody waits for room: keep nothing that is not being read this moment


UNHEARD = Share(is_tight=True)  # without a line to the fetcher nobody can ask for what is kept, so nothing is


def is_news(told: Share | None, now: Share) -> bool:
    """Tell whether a share differs enough from what was said before: who comes or goes among many changes little."""
    if told is None or told.is_tight != now.is_tight:
        return True
    if told.num_bytes is None or now.num_bytes is None:
        return told.num_bytes is not now.num_bytes
    return abs(told.num_bytes - now.num_bytes) * 10 > told.num_bytes


def joined(shares: Mapping[Any, Share], num_keepers: int) -> Share:
    """Give what each of so many may keep who have to heed all of these shares."""
    sizes = [share.num_bytes for share in shares.values() if share.num_bytes is not None]
    return Share(min(sizes) // max(1, num_keepers) if sizes else None, any(share.is_tight for share in shares.values()))


class Keeper(Protocol):
    """Whoever keeps shards open between two uses."""

    def keep_to(self, share: Share) -> None:
        """Close what is too much: at once, or when whoever reads it is done. Never waits."""
        ...


class Keepers:
    """All who keep shards of one cache open in this process, and what they were told. Safe for threads."""

    def __init__(self) -> None:
        # Held while they are told, so that the last word is the last; the collector may close a cache meanwhile.
        self._lock = threading.RLock()
        self._keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()
        self._shares: dict[str, Share] = {}
        self.is_bound = False  # whether others may wait for what is kept here

    def __bool__(self) -> bool:
        return bool(self._keepers)

    def add(self, keeper: Keeper) -> None:
        """Add somebody, who must be held elsewhere; he is told at once, and those before him have less."""
        with self._lock:
            self._keepers.add(keeper)
            self._tell_all()

    def told(self, source: str, share: Share) -> None:
        """Take what a fetcher says, and pass it on."""
        with self._lock:
            if self._shares.get(source) != share:
                self._shares[source] = share
                self._tell_all()

    def forget(self) -> None:
        """Forget what was told: the line over which it came was closed on purpose."""
        with self._lock:
            self._shares.clear()
            self._tell_all()

    def _tell_all(self) -> None:
        self.is_bound = any(share != Share() for share in self._shares.values())
        keepers = list(self._keepers)
        share = joined(self._shares, len(keepers))
        for keeper in keepers:
            keeper.keep_to(share)
