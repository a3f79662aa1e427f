"""A store that the node's fetcher asks on behalf of this process.

The clients of object stores do not survive a fork, and processes that write or look around are forked all the time. So
what a writer reads, lists and uploads goes through the fetcher, too.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.cache.backend import Guest
from penstock.interrupts import WaitingFor
from penstock.storage.base import ObjectInfo, StoreSettings, open_store, resolve_store, shown_url, url_scheme
from penstock.storage.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from penstock.storage.base import Store
    from penstock.types import Span
    from penstock.wire.frames import Header

# Stores that need no client, or live in the memory of this process.
_NEAR = (None, "file", "memory")


def open_proxied(url: str, options: Mapping[str, Any] | None = None, *, retry: RetryPolicy | None = None) -> Store:
    """Find the store of a URL, to be used from this process and from those that it forks."""
    settings = resolve_store(url, options)
    if url_scheme(url) in _NEAR:
        return open_store(settings, retry=retry)
    return ProxiedStore(settings, retry or RetryPolicy())


@dataclass(frozen=True, slots=True)
class ProxiedStore:
    """Has the fetcher do what is asked of it. Pickles as its settings, and may be used in any process."""

    settings: StoreSettings
    retry: RetryPolicy
    _line: Guest = field(default_factory=Guest, compare=False, repr=False)

    def read(self, key: str, span: Span | None = None) -> bytes:
        """Give an object or a range of it."""
        return self._ask("read", key=key, span=None if span is None else [span.begin, span.end])[1]

    def read_piece(self, key: str, span: Span, etag: str | None = None) -> tuple[bytes, ObjectInfo]:
        """Give a range of an object, and what the whole object is."""
        answer, data = self._ask("read_piece", key=key, span=[span.begin, span.end], etag=etag)
        return data, ObjectInfo(**answer["info"])

    def download(self, key: str, path: Path, span: Span | None = None) -> None:
        """Bring an object, or a range of it, to a local file."""
        span_of = None if span is None else [span.begin, span.end]
        self._ask("download", key=key, path=os.fspath(path.absolute()), span=span_of)

    def upload(self, path: Path, key: str) -> None:
        """Put a local file under a key."""
        self._ask("upload", key=key, path=os.fspath(path.absolute()))

    def stat(self, key: str) -> ObjectInfo:
        """Describe an object."""
        return ObjectInfo(**self._ask("stat", key=key)[0]["info"])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects whose keys begin with a prefix, sorted by key."""
        return (ObjectInfo(**info) for info in json.loads(self._ask("list", prefix=prefix)[1]))

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._ask("delete", key=key)

    def check_writable(self) -> None:
        """Raise if nothing can be stored here, saying why."""
        self._ask("check")

    def stop(self) -> None:
        """Give up whatever other threads are having done; they are told so at once."""
        self._line.stop()

    def close(self) -> None:
        """Hang up; the next use connects anew."""
        self._line.close()

    def _ask(self, action: str, **arguments: Any) -> tuple[Header, bytes]:
        settings = {"url": self.settings.url, "options": self.settings.options, "retry": asdict(self.retry)}
        with WaitingFor(f"{shown_url(self.settings.url).rstrip('/')}/{arguments.get('key', '')} ({action})"):
            return self._line.request({"op": "store", "store": settings, "action": action, "arguments": arguments})
