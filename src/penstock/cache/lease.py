"""The promise that a shard stays while it is read: a shared lock on the shard's own first file."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.cache.lock import Descriptor, try_lock
from penstock.errors import BadIndexError
from penstock.files import translated
from penstock.index.paths import is_plain_name, resolve_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self


class Lease:
    """A shard that stays while this is open. It belongs to its process: a forked child has to take its own."""

    __slots__ = ("_descriptor", "_on_close", "paths")

    def __init__(self, paths: tuple[Path, ...], descriptor: Descriptor, on_close: Callable[[], None] | None) -> None:
        self.paths = paths
        self._descriptor = descriptor
        self._on_close = on_close

    def close(self) -> None:
        """Let the shard go. Closing again does nothing."""
        if self._descriptor.number >= 0:
            self._descriptor.close()
            if self._on_close is not None:
                self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Paths:
    """Paths of files below one directory. Links that lead out of it are refused; each folder is looked at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._checked: set[str] = set()

    def __call__(self, name: str) -> Path:
        """Give the path of a file by its name."""
        folder = name.rpartition("/")[0]
        if folder in self._checked and is_plain_name(name):
            return self.directory / name
        if not is_plain_name(name):
            raise BadIndexError(f"{name!r} is not a plain path below the dataset's folder", basename=name)
        path = resolve_inside(self.directory, name)
        if path.parent.is_dir():
            self._checked.add(folder)
        return path


def try_lease(
    paths: Paths, files: Sequence[tuple[str, int | None]], on_close: Callable[[], None] | None
) -> Lease | None:
    """Lease a shard by the names and sizes of its files, or give None if it is not there as the index says."""
    found = tuple(paths(name) for name, _ in files)
    first = found[0]
    try:
        descriptor = Descriptor(os.open(first, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError as error:
        if isinstance(error, PermissionError):
            with translated(first):
                raise
        return None
    is_leased = False
    try:
        if not try_lock(descriptor.number, fcntl.LOCK_SH, first):
            return None  # it is being evicted
        status = os.fstat(descriptor.number)
        if not _is_still_there(first, status, files[0][1]):
            return None
        for path, (_, num_bytes) in zip(found[1:], files[1:], strict=True):
            if _size(path) != num_bytes:
                return None
        _note_use(descriptor.number, status)
        is_leased = True
        return Lease(found, descriptor, on_close)
    finally:
        if not is_leased:
            descriptor.close()


def is_present(paths: Paths, files: Sequence[tuple[str, int | None]]) -> bool:
    """Tell whether a shard seems to be there, by the size of its first file alone."""
    name, num_bytes = files[0]
    size = _size(paths(name))
    return size is not None and num_bytes in (None, size)


def _is_still_there(path: Path, status: os.stat_result, num_bytes: int | None) -> bool:
    """Between opening and locking it may have been evicted, or replaced by a file of the right size."""
    if not stat.S_ISREG(status.st_mode) or num_bytes not in (None, status.st_size):
        return False
    try:
        now = path.lstat()
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino)


def _size(path: Path) -> int | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _note_use(number: int, status: os.stat_result) -> None:
    """Set the time of access, which is the clock that everybody's eviction goes by."""
    with suppress(OSError):  # a file of another user: its time of use is then not ours to set
        os.utime(number, ns=(time.time_ns(), status.st_mtime_ns))
