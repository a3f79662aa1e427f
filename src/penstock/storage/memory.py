"""A store in the memory of this process, for tests and examples: `memory://name/prefix`."""

from __future__ import annotations

import threading
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, ObjectNotFoundError, StoreError
from penstock.files import atomic_write, read_file
from penstock.storage.base import ObjectInfo, StoreFamily, check_key, check_version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.types import Span


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    tag: str
    modified_ns: int


# By full name: stores are settings only, so the objects live here and last as long as the process.
_objects: dict[str, _Object] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class MemoryStore:
    """Objects of this process below one name."""

    root: str

    @classmethod
    def from_url(cls, url: str) -> MemoryStore:
        """Make the store of a `memory://` URL."""
        root = url.partition("://")[2].strip("/")
        if not root:
            raise ConfigError(f"{url!r} has no name: write memory://name")
        return cls(check_key(root))

    def read(self, key: str, span: Span | None = None) -> bytes:
        """Return an object or a range of it."""
        data = self._find(key).data
        return data if span is None else self._cut(key, data, span)

    def download(self, key: str, path: Path, span: Span | None = None) -> None:
        """Write an object, or a range of it, to a file."""
        data = self.read(key, span)
        with atomic_write(path) as part:
            part.write_bytes(data)

    def read_piece(self, key: str, span: Span, etag: str | None = None) -> tuple[bytes, ObjectInfo]:
        """Return a range of an object, and what the object is."""
        found = self._find(key)
        info = _describe(key, found)
        check_version(f"memory://{self._name(key)}", info, etag)
        return self._cut(key, found.data, span), info

    def upload(self, path: Path, key: str) -> None:
        """Keep the content of a file."""
        name = self._name(key)
        data = read_file(path)
        tag = f"{zlib.crc32(data):x}"
        with _lock:
            before = _objects.get(name)
            now_ns = max(time.time_ns(), before.modified_ns + 1 if before else 0)  # clocks may be set back
            _objects[name] = _Object(data, tag, now_ns)

    def stat(self, key: str) -> ObjectInfo:
        """Describe an object."""
        return _describe(key, self._find(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects whose keys begin with a prefix, sorted."""
        root = self.root + "/"
        with _lock:
            found = {name.removeprefix(root): item for name, item in _objects.items() if name.startswith(root)}
        return (_describe(key, found[key]) for key in sorted(found) if key.startswith(prefix))

    def delete(self, key: str) -> None:
        """Remove an object."""
        with _lock:
            if _objects.pop(self._name(key), None) is None:
                raise ObjectNotFoundError(f"there is no object memory://{self._name(key)}", key=key)

    def _find(self, key: str) -> _Object:
        try:
            return _objects[self._name(key)]
        except KeyError as error:
            raise ObjectNotFoundError(f"there is no object memory://{self._name(key)}", key=key) from error

    def _cut(self, key: str, data: bytes, span: Span) -> bytes:
        if span.end > len(data):
            raise StoreError(f"memory://{self._name(key)} ends before byte {span.end}", key=key)
        return data[span.begin : span.end]

    def _name(self, key: str) -> str:
        return f"{self.root}/{check_key(key)}"


def _describe(key: str, found: _Object) -> ObjectInfo:
    return ObjectInfo(key, len(found.data), found.tag, found.modified_ns)


family = StoreFamily(open=lambda settings, _retry, _hooks: MemoryStore.from_url(settings.url))
