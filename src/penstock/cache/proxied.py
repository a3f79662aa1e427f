"""A store that the node's fetcher asks on behalf of this process.

The clients of object stores do not survive a fork, and processes that write or look around are forked all the time. So
what a writer reads, lists and uploads goes through the fetcher, too.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.cache.client import Client, Group
from penstock.cache.progress import wait_line
from penstock.errors import FetcherError
from penstock.interrupts import WaitingFor
from penstock.processes import PerProcess
from penstock.storage.base import ObjectInfo, StoreSettings, open_store, resolve_store, shown_url, url_scheme
from penstock.storage.hub_location import at_revision, is_commit
from penstock.storage.retry import RetryPolicy
from penstock.storage.url_names import join_url, with_queries
from penstock.wire.messages import CallStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from penstock.storage.base import Store
    from penstock.types import Span
    from penstock.wire.messages import StoreAnswer

# Stores that need no client, or live in the memory of this process.
_NEAR = (None, "file", "memory")
_NOWHERE = Group()  # the only one of its client: it has no directories


def open_proxied(
    url: str,
    options: Mapping[str, Any] | None = None,
    *,
    retry: RetryPolicy | None = None,
    queries: Mapping[str, str] | None = None,
) -> Store:
    """Find the store of a URL, to be used from this process and from those that it forks.

    `queries` are those of single files on the web, by their URLs.
    """
    settings = with_queries(resolve_store(url, options), queries or {})
    if url_scheme(url) in _NEAR:
        return open_store(settings, retry=retry)
    return ProxiedStore(settings, retry or RetryPolicy())


@contextmanager
def lend_proxied(url: str, options: Mapping[str, Any] | None = None) -> Iterator[Store]:
    """Lend the store of a URL, whose connection is closed afterwards."""
    store = open_proxied(url, options)
    try:
        yield store
    finally:
        if isinstance(store, ProxiedStore):
            store.close()


def open_pinned(
    url: str,
    options: Mapping[str, Any] | None = None,
    *,
    retry: RetryPolicy | None = None,
    queries: Mapping[str, str] | None = None,
) -> tuple[Store, str, Mapping[str, Any] | None]:
    """Find the store of a URL; one of the Hub in the commit that it has now, whichever fetcher reads it later.

    Gives the store, the URL that names the commit, and the options that go with that.
    """
    store = open_proxied(url, options, retry=retry, queries=queries)
    if url_scheme(url) != "hf" or not isinstance(store, ProxiedStore):
        return store, url, options
    commit = store.revision()
    if not is_commit(commit) or commit is None:  # a bucket has none
        return store, url, options
    pinned = at_revision(url, commit)
    others = None if options is None else {name: value for name, value in options.items() if name != "revision"}
    return open_proxied(pinned, others, retry=retry), pinned, others


def _own_client() -> Client:
    """Make a client for one who has no directories, but keeps its connection until it is closed."""
    client = Client()
    client.join(_NOWHERE)
    return client


@dataclass(frozen=True, slots=True)
class ProxiedStore:
    """Has the fetcher do what is asked of it. Pickles as its settings, and may be used in any process.

    Its connection is its own: what one store waits for can be given up.
    """

    settings: StoreSettings
    retry: RetryPolicy
    _client: PerProcess[Client] = field(default_factory=lambda: PerProcess(_own_client), compare=False, repr=False)

    def read(self, key: str, span: Span | None = None) -> bytes:
        """Return an object or a range of it."""
        return self._ask("read", key, span=span)[1]

    def read_piece(self, key: str, span: Span, etag: str | None = None) -> tuple[bytes, ObjectInfo]:
        """Return a range of an object, and what the whole object is."""
        answer, data = self._ask("read_piece", key, span=span, etag=etag)
        return data, _told(answer)

    def download(self, key: str, path: Path, span: Span | None = None) -> None:
        """Bring an object, or a range of it, to a local file."""
        self._ask("download", key, path=os.fspath(path.absolute()), span=span)

    def upload(self, path: Path, key: str) -> None:
        """Put a local file under a key."""
        self._ask("upload", key, path=os.fspath(path.absolute()))

    def stat(self, key: str) -> ObjectInfo:
        """Describe an object."""
        return _told(self._ask("stat", key)[0])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects whose keys begin with a prefix, sorted by key."""
        return (ObjectInfo(**info) for info in json.loads(self._ask("list", prefix)[1]))

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._ask("delete", key)

    def revision(self) -> str | None:
        """Return the commit that is read, if the store keeps commits."""
        return self._ask("revision")[1].decode() or None

    def check_writable(self) -> None:
        """Raise if nothing can be stored here, saying why."""
        self._ask("check")

    def stop(self) -> None:
        """Abandon whatever other threads are having done; they are told so at once."""
        client = self._client.made
        if client is not None:
            client.stop()

    def close(self) -> None:
        """Hang up; the next use connects anew."""
        client = self._client.forget()
        if client is not None:
            client.leave(_NOWHERE)

    def __del__(self) -> None:
        self.close()

    def _ask(self, action: str, key: str = "", **arguments: Any) -> tuple[StoreAnswer, bytes]:
        call = CallStore(store=self.settings, retry=self.retry, action=action, key=key, **arguments)
        what = f"{join_url(shown_url(self.settings.url), key)} ({action})"
        if action == "upload":  # in the background of a writer, which does not wait for it
            with WaitingFor(what):
                return self._client.get().request(call)
        with wait_line(what, what) as show:
            return self._client.get().request(
                call, on_progress=lambda told: show(replace(told, name=key, state="asked"))
            )


def _told(answer: StoreAnswer) -> ObjectInfo:
    if answer.info is None:
        raise FetcherError("the fetcher did not answer for one of the objects that it was asked for")
    return answer.info
