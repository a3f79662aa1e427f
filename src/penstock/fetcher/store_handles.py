"""Stores as the fetcher asks them: how often again, and for how long; each is opened once for all."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from penstock.cachedir.layout import place_of
from penstock.storage.base import (
    CopiesPieces,
    HasCommits,
    HasQueries,
    LearnsRanges,
    ReadsTogether,
    open_store,
    shown_url,
    url_scheme,
)
from penstock.storage.retry import RetryPolicy
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from penstock.storage.base import Store
    from penstock.storage.retry import RetryHooks
    from penstock.wire.settings import CachedStream


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHandle:
    """A store, which tries again by itself, and how patiently it is asked."""

    store: Store
    url: str = field(repr=False)
    name: str = ""  # what tells its data from others': place and endpoint (another one, another place), no secrets
    retry: int = 2
    timeout_s: float = 60.0  # without a single byte

    def where(self, key: str) -> str:
        """Name an object in messages."""
        return join_url(_shown_root(self.url), key)

    @property
    def has_ranges(self) -> bool:
        """Whether parts of an object can be had without all that comes before them, as far as is known."""
        return not isinstance(self.store, LearnsRanges) or self.store.ranges.are_sent

    @property
    def reads_together(self) -> bool:
        """Whether several ranges of an object can be had by one call."""
        return self.has_ranges and isinstance(self.store, ReadsTogether) and self.store.reads_together

    @property
    def is_read_in_one(self) -> bool:
        """Whether an object is best read at once: its server sends no pieces, and what comes goes straight to disk."""
        return not self.has_ranges and isinstance(self.store, CopiesPieces)

    @property
    def has_queries(self) -> bool:
        """Whether files were named with queries of their own: a request for any other would be refused."""
        return isinstance(self.store, HasQueries) and self.store.has_queries

    def revision(self) -> str | None:
        """Return the commit that is read, if the store keeps commits."""
        return self.store.commit() if isinstance(self.store, HasCommits) else None


@lru_cache(64)
def _shown_root(url: str) -> str:
    """Return a URL as it may be shown; it is needed for each piece."""
    return shown_url(url)


def is_near(handle: StoreHandle) -> bool:
    """Return True if a store answers a question at once: nothing is gained by asking it less."""
    return url_scheme(handle.url) in (None, "file", "memory")


class StoreHandles:
    """Opens stores, and keeps them open. Safe for threads."""

    def __init__(self, hooks: RetryHooks) -> None:
        self._lock = threading.Lock()
        self._origins: dict[str, StoreHandle] = {}
        self._hooks = hooks

    def of(self, stream: CachedStream) -> StoreHandle:
        """Return the handle of a stream."""
        store, options = stream.store, stream.store.options
        known = f"{stream.retry} {stream.timeout_s} {store.url} {sorted(options.items(), key=str)!r}"
        with self._lock:
            handle = self._origins.get(known)
            if handle is None:
                endpoint = options.get("endpoint")
                handle = self._origins[known] = StoreHandle(
                    store=open_store(store, retry=RetryPolicy.of(stream.retry, stream.timeout_s), hooks=self._hooks),
                    url=store.url,
                    name=place_of(store.url) + (f" at {shown_url(str(endpoint))}" if endpoint else ""),
                    retry=stream.retry,
                    timeout_s=stream.timeout_s,
                )
            return handle
