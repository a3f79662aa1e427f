"""What a store is, and how a URL finds its store."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import ConfigError, UnknownSchemeError
from penstock.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.types import Span

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object: its key below the store's root, its size and, if the store has one, its version tag."""

    key: str
    num_bytes: int
    etag: str | None = None


class Store(Protocol):
    """Objects under one root. A store is settings only: it pickles, and it may be used in any process."""

    def read(self, key: str, span: Span | None = None) -> bytes:
        """Give an object or a range of it."""
        ...

    def download(self, key: str, path: Path, span: Span | None = None) -> None:
        """Bring an object, or a range of it, to a local file, which appears whole or not at all."""
        ...

    def read_piece(self, key: str, span: Span, etag: str | None = None) -> tuple[Buffer, ObjectInfo]:
        """Give a range of an object, and what the whole object is.

        With `etag`, an object that is no longer that version is an `ObjectChangedError`: pieces of two versions never
        make one file. The span must lie within the object.
        """
        ...

    def upload(self, path: Path, key: str) -> None:
        """Put a local file under a key, replacing what is there; readers see the old or the new object."""
        ...

    def stat(self, key: str) -> ObjectInfo:
        """Describe an object; a missing one is an `ObjectNotFoundError`."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects whose keys begin with a prefix, sorted by key."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is an `ObjectNotFoundError`."""
        ...


stores: Registry[Any] = Registry(
    "URL scheme",
    group="penstock.stores",
    builtin={
        "file": "penstock.storage.local:LocalStore.from_url",
        "memory": "penstock.storage.memory:MemoryStore.from_url",
    },
)


def url_scheme(url: str) -> str | None:
    """Give the scheme of a URL in lower case, or None if it is a plain path."""
    match = _URL.match(url)
    return match.group(1).lower() if match else None


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """All that it takes to open a store in another process of the same user: plain JSON values.

    `options` may hold secrets: they travel over the fetcher's socket, and are never shown or kept.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict, repr=False, hash=False)


def resolve_store(url: str, options: Mapping[str, Any] | None = None) -> StoreSettings:
    """Gather what the environment of this process says about a store, for whoever opens it elsewhere."""
    return StoreSettings(url, dict(options or {}))


def open_store(url: str | StoreSettings) -> Store:
    """Find the store of a URL or of a plain path. Nothing is read or connected to yet."""
    url = url.url if isinstance(url, StoreSettings) else url
    scheme = url_scheme(url)
    if scheme is None:
        scheme = "file"
    elif scheme not in stores:
        raise UnknownSchemeError(
            f"Invalid Cloud provider prefix: {scheme}. Known are {', '.join(stores.names())}, and plain paths",
            scheme=scheme,
        )
    store: Store = stores.get(scheme)(url)
    return store


def check_key(key: str) -> str:
    """Return a key that stays below the root of its store, or raise."""
    if key.startswith("/") or "\\" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise ConfigError(f"{key!r} is not a key below the root of a store")
    return key
