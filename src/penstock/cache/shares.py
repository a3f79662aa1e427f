"""Those who keep shards of a cache open in this process, and what the fetcher says that they may keep."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from penstock.wire.quota import OpenShardQuota

if TYPE_CHECKING:
    from collections.abc import Mapping


class ShareListener(Protocol):
    """What keeps shards open between two uses."""

    def keep_to(self, share: OpenShardQuota) -> None:
        """Close what is too much: at once, or when its reader is done. Never waits."""


class ShareListeners:
    """All who keep shards of one cache open in this process, and what they were told. Safe for threads."""

    def __init__(self) -> None:
        # Held while they are told, so that the last word is the last; the collector may close a cache meanwhile.
        self._lock = threading.RLock()
        self._listeners: weakref.WeakSet[ShareListener] = weakref.WeakSet()
        self._shares: dict[str, OpenShardQuota] = {}
        self.is_bound = False  # whether others may wait for what is kept here

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: ShareListener) -> None:
        """Add a listener, which must be held elsewhere; it is told at once, and those before it have less."""
        with self._lock:
            self._listeners.add(listener)
            self._tell_all()

    def tell(self, source: str, share: OpenShardQuota) -> None:
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
        self.is_bound = any(share != OpenShardQuota() for share in self._shares.values())
        listeners = list(self._listeners)
        share = share_of_each(self._shares, len(listeners))
        for listener in listeners:
            listener.keep_to(share)


def share_of_each(shares: Mapping[Any, OpenShardQuota], num_listeners: int) -> OpenShardQuota:
    """Return what each of so many may keep who have to heed all of these shares."""
    sizes = [share.num_bytes for share in shares.values() if share.num_bytes is not None]
    num_bytes = min(sizes) // max(1, num_listeners) if sizes else None
    return OpenShardQuota(num_bytes, any(share.is_tight for share in shares.values()))
