"""A directory of this machine as a store."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, ObjectNotFoundError, StoreError
from penstock.files import PART_SUFFIX, atomic_write, flush_folder, open_file, os_errors
from penstock.storage.base import ObjectInfo, StoreFamily, check_key, check_version, shown_url, url_scheme
from penstock.storage.url_names import unescaped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.types import Span

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LocalStore:
    """The files below a directory, which need not exist before the first upload."""

    root: Path

    @classmethod
    def from_url(cls, url: str) -> LocalStore:
        """Make the store of a plain path or of a `file://` URL."""
        if url_scheme(url) != "file":
            return cls(Path(url).expanduser())
        place = url.partition(":")[2]
        host, slash, path = place[2:].partition("/") if place.startswith("//") else ("", "", place)
        if host not in ("", "localhost"):
            raise ConfigError(f"{shown_url(url)!r} names another machine: write file:///path for a path on this one")
        return cls(Path(unescaped(slash + path)))  # files have no queries: `?` and `#` are what they are

    def read(self, key: str, span: Span | None = None) -> bytes:
        """Return a file or a range of it."""
        path = self._path(key)
        with os_errors(path), open_file(path) as file:
            if span is None:
                return file.read()
            file.seek(span.begin)
            data = file.read(len(span))
        if len(data) != len(span):
            raise StoreError(f"{path} ends before byte {span.end}", key=key)
        return data

    def download(self, key: str, path: Path, span: Span | None = None) -> None:
        """Copy a file, or a range of it, to another place."""
        source = self._path(key)
        with os_errors(source), atomic_write(path) as part, open_file(source) as file, part.open("wb") as out:
            if span is None:
                shutil.copyfileobj(file, out, _COPY_BYTES)
            else:
                out.write(self.read(key, span))

    def read_piece(self, key: str, span: Span, etag: str | None = None) -> tuple[bytes, ObjectInfo]:
        """Return a range of a file, and what the file is."""
        path = self._path(key)
        with os_errors(path), open_file(path) as file:
            info = _describe(key, os.fstat(file.fileno()))
            check_version(str(path), info, etag)
            data = os.pread(file.fileno(), len(span), span.begin)
        if len(data) != len(span):
            raise StoreError(f"{path} ends before byte {span.end}", key=key)
        return data, info

    def upload(self, path: Path, key: str) -> None:
        """Copy a file into the directory; it is on the disk before this returns, and before what is uploaded next."""
        target = self._path(key)
        with os_errors(target), open_file(path) as file:
            with atomic_write(target, flush=True) as part, part.open("xb") as out:
                shutil.copyfileobj(file, out, _COPY_BYTES)
            flush_folder(target.parent)

    def stat(self, key: str) -> ObjectInfo:
        """Describe a file."""
        path = self._path(key)
        with os_errors(path):
            status = path.stat()
        if not path.is_file():
            raise ObjectNotFoundError(f"{path} is not a file", key=key)
        return _describe(key, status)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the files whose paths below the directory begin with a prefix, sorted."""
        keys = []
        begin = prefix.rpartition("/")[0]
        for folder, _, names in os.walk(self._path(begin) if begin else self.root):
            base = Path(folder).relative_to(self.root)
            keys += [(base / name).as_posix() for name in names if not name.endswith(PART_SUFFIX)]
        return filter(None, (self._find(key) for key in sorted(keys) if key.startswith(prefix)))

    def delete(self, key: str) -> None:
        """Remove a file."""
        path = self._path(key)
        with os_errors(path):
            path.unlink()

    def _find(self, key: str) -> ObjectInfo | None:
        """Describe what a folder lists; None: it is a socket or the like, or gone already."""
        try:
            return self.stat(key)
        except ObjectNotFoundError:
            if self._path(key).is_symlink():  # to data that is missing
                raise
            return None

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)


def _describe(key: str, status: os.stat_result) -> ObjectInfo:
    # The inode too: clocks tick every few milliseconds, and programs set times back (rsync -t, tar).
    tag = f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"
    return ObjectInfo(key, status.st_size, tag, status.st_mtime_ns)


family = StoreFamily(open=lambda settings, _retry, _hooks: LocalStore.from_url(settings.url))
