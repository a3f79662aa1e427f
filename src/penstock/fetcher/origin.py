"""Stores as the fetcher asks them: how often again, and for how long; each is opened once for all."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cachedir.layout import place_of
from penstock.errors import FetcherError
from penstock.storage.base import check_writable, open_store, shown_url, url_scheme
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.storage.url_names import join_url
from penstock.wire.messages import StoreAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.errors import StoreError
    from penstock.storage.base import Store
    from penstock.wire.messages import CallStore
    from penstock.wire.settings import CachedStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
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
        ranges = getattr(self.store, "ranges", None)
        return ranges is None or ranges.are_sent

    @property
    def reads_together(self) -> bool:
        """Whether several ranges of an object can be had by one call."""
        return self.has_ranges and getattr(self.store, "reads_together", False)

    @property
    def is_read_in_one(self) -> bool:
        """Whether an object is best read at once: its server sends no pieces, and what comes goes straight to disk."""
        return not self.has_ranges and hasattr(self.store, "copy_piece")

    @property
    def has_queries(self) -> bool:
        """Whether files were named with queries of their own: a request for any other would be refused."""
        return getattr(self.store, "has_queries", False)

    def revision(self) -> str | None:
        """Give the commit that is read, if the store keeps commits."""
        return self.revision_of(self.store)

    @staticmethod
    def revision_of(store: Store) -> str | None:
        """Give the commit that a store reads, if it keeps commits."""
        commit = getattr(store, "commit", None)
        return None if commit is None else str(commit())


@lru_cache(64)
def _shown_root(url: str) -> str:
    """Give a URL as it may be shown; it is needed for each piece."""
    return shown_url(url)


def is_near(origin: Origin) -> bool:
    """Tell whether a store answers a question at once: nothing is gained by asking it less."""
    return url_scheme(origin.url) in (None, "file", "memory")


class Origins:
    """Opens stores, and keeps them open. Safe for threads."""

    def __init__(self, hooks: RetryHooks) -> None:
        self._lock = threading.Lock()
        self._stores: dict[str, Store] = {}
        self._hooks = hooks

    def of(self, stream: CachedStream) -> Origin:
        """Give the origin of a stream."""
        policy = RetryPolicy.of(stream.retry, stream.timeout_s)
        known = f"{policy} {stream.store.url} {sorted(stream.store.options.items(), key=str)!r}"
        with self._lock:
            store = self._stores.get(known)
            if store is None:
                store = self._stores[known] = open_store(stream.store, retry=policy, hooks=self._hooks)
        endpoint = stream.store.options.get("endpoint")
        return Origin(
            store=store,
            url=stream.store.url,
            name=place_of(stream.store.url) + (f" at {shown_url(str(endpoint))}" if endpoint else ""),
            retry=stream.retry,
            timeout_s=stream.timeout_s,
        )


# --- For processes that have no client of their own ---------------------------------------------------------


def call_store(
    call: CallStore, is_over: threading.Event, on_retry: Callable[[StoreError], None]
) -> tuple[StoreAnswer, bytes]:
    """Do one thing with a store: give what it says of an object, and bytes if it is bytes that were asked for.

    It is not tried again once `is_over` says that whoever wanted it has left.
    """

    def pause(seconds: float) -> None:
        if is_over.wait(seconds):
            raise FetcherError(f"the client that wanted to {call.action} has disconnected")

    hooks = RetryHooks(sleep=pause, on_retry=on_retry)
    return _act(open_store(call.store, retry=call.retry, hooks=hooks), call)


def _act(store: Store, call: CallStore) -> tuple[StoreAnswer, bytes]:
    data = b""
    info = None
    if call.action == "read":
        data = store.read(call.key, call.span)
    elif call.action == "read_piece" and call.span is not None:
        piece, info = store.read_piece(call.key, call.span, call.etag)
        data = bytes(piece)
    elif call.action == "stat":
        info = store.stat(call.key)
    elif call.action == "list":
        data = json.dumps([asdict(found) for found in store.list(call.key)]).encode()
    elif call.action == "revision":
        data = (Origin.revision_of(store) or "").encode()
    elif call.action == "check":
        check_writable(store)
    elif call.action == "upload" and call.path is not None:
        store.upload(Path(call.path), call.key)
    elif call.action == "download" and call.path is not None:
        store.download(call.key, Path(call.path), call.span)
    elif call.action == "delete":
        store.delete(call.key)
    else:
        raise FetcherError(f"a client asked for the unknown store action {call.action!r}")
    return StoreAnswer(info), data
