"""Tells everybody who shares directories what he may keep open there, whenever that changes."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from penstock.wire.share import is_news

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from penstock.fetcher.budget import DiskBudget
    from penstock.wire.share import Share

_log = logging.getLogger("penstock.cache")
_TIGHT_FOR_S = 2.0  # so long after somebody found no room: others may soon not find any either


class ShareBoard:
    """Knows who listens and what he was told. Safe for threads."""

    def __init__(self, budget: DiskBudget) -> None:
        self._budget = budget
        self._lock = threading.RLock()  # never held while anybody is told
        self._telling = threading.RLock()  # one by one, in order; whoever is told may leave meanwhile
        self._listeners: dict[Hashable, Callable[[Share], None]] = {}
        self._told: dict[Hashable, Share] = {}
        self._tight: dict[str, float] = {}  # directories that somebody waits for room in, and until when they count

    def join(self, group: Hashable, on_share: Callable[[Share], None]) -> None:
        """Add a group, which has not been told anything."""
        with self._lock:
            self._listeners[group] = on_share
            self._told.pop(group, None)

    def leave(self, group: Hashable) -> None:
        """Forget a group."""
        with self._lock:
            self._listeners.pop(group, None)
            self._told.pop(group, None)

    def tighten(self, directories: Iterable[str]) -> None:
        """Note that somebody finds no room in some directories; they are tight for a while."""
        with self._lock:
            self._tight |= dict.fromkeys(directories, time.monotonic() + _TIGHT_FOR_S)

    def is_tight(self) -> bool:
        """Tell whether any directory is tight now."""
        with self._lock:
            now = time.monotonic()
            self._tight = {name: until for name, until in self._tight.items() if until > now}
            return bool(self._tight)

    def tell(self) -> None:
        """Say to all for whom it has changed what they may keep open."""
        with self._telling:
            with self._lock:
                shares = self._budget.shares(self._tight if self.is_tight() else ())
                news = {
                    group: shares[group]
                    for group in self._listeners
                    if group in shares and is_news(self._told.get(group), shares[group])
                }
                self._told |= news
            for group, share in news.items():
                on_share = self._listeners.get(group)
                if on_share is None or self._told.get(group) != share:
                    continue
                try:
                    on_share(share)
                except Exception:  # noqa: BLE001  its own affair: others are still to be told
                    _log.exception("could not tell a client how much it may keep open")
