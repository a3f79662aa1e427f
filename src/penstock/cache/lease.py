"""The promise that a shard stays while it is read: a shared lock on the shard's own first file."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cachedir.editions import mix_stamps
from penstock.cachedir.lock import Descriptor, try_lock
from penstock.errors import BadIndexError
from penstock.files import translated
from penstock.index.paths import is_plain_name, resolve_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from penstock.cachedir.editions import Entry

# No link is followed, and nothing that is not a file is waited for.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Lease:
    """A shard that stays while this is open. It belongs to its process: a forked child has to take its own."""

    __slots__ = ("_descriptor", "_names", "_on_close")

    def __init__(self, names: Sequence[str], descriptor: Descriptor, on_close: Callable[[], None]) -> None:
        self._names = names
        self._descriptor = descriptor
        self._on_close = on_close

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of the shard."""
        return tuple(map(Path, self._names))

    def close(self) -> None:
        """Let the shard go. Closing again does nothing."""
        if self._descriptor.number >= 0:
            self._descriptor.close()
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
        self._prefix = f"{directory}/"
        self._checked: set[str] = set()

    def __call__(self, name: str) -> str:
        """Give the path of a file by its name, as text: a lease takes less time than to make a `Path`."""
        folder = name.rpartition("/")[0]
        if folder not in self._checked:
            path = resolve_inside(self.directory, name)
            if path.parent.is_dir():
                self._checked.add(folder)
        if not is_plain_name(name):
            raise BadIndexError(f"{name!r} is not a plain path below the dataset's folder", basename=name)
        return self._prefix + name


def try_lease(paths: Sequence[str], sizes: Sequence[int], entry: Entry, on_close: Callable[[], None]) -> Lease | None:
    """Lease a shard by its files, or give None if they are not those that the table of the edition says."""
    first = paths[0]
    try:
        descriptor = Descriptor(os.open(first, _FLAGS))
    except OSError as error:
        if isinstance(error, PermissionError):
            with translated(Path(first)):
                raise
        return None
    is_leased = False
    try:
        if not try_lock(descriptor.number, fcntl.LOCK_SH, first):
            return None  # it is being evicted
        status = os.fstat(descriptor.number)
        if status.st_ino != entry.inode or status.st_mtime_ns != entry.mtime_ns or status.st_size != sizes[0]:
            return None
        if not _is_still_there(first, status) or (len(paths) > 1 and not _are_others(paths, sizes, entry)):
            return None
        _note_use(descriptor.number, status)
        is_leased = True
        return Lease(paths, descriptor, on_close)
    finally:
        if not is_leased:
            descriptor.close()


def is_present(path: str, num_bytes: int, entry: Entry) -> bool:
    """Tell whether a shard seems to be there, by its first file alone."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return (status.st_ino, status.st_mtime_ns, status.st_size) == (entry.inode, entry.mtime_ns, num_bytes)


def _is_still_there(path: str, status: os.stat_result) -> bool:
    """Between opening and locking it may have been evicted, or replaced."""
    try:
        now = os.lstat(path)
    except OSError:
        return False
    return now.st_ino == status.st_ino and now.st_dev == status.st_dev


def _are_others(paths: Sequence[str], sizes: Sequence[int], entry: Entry) -> bool:
    """Tell whether the further files of a shard are of it, too."""
    try:
        found = [os.lstat(path) for path in paths[1:]]
    except OSError:
        return False
    are_plain = all(stat.S_ISREG(status.st_mode) for status in found)
    are_whole = [status.st_size for status in found] == list(sizes[1:])
    mixed = mix_stamps((status.st_ino, status.st_mtime_ns) for status in found)
    return are_plain and are_whole and mixed == entry.others


def _note_use(number: int, status: os.stat_result) -> None:
    """Set the time of access, which is the clock that everybody's eviction goes by."""
    with suppress(OSError):  # a file of another user: its time of use is then not ours to set
        os.utime(number, ns=(time.time_ns(), status.st_mtime_ns))
