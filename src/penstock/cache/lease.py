"""The promise that a shard stays while it is read: a shared lock on the shard's own first file."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cachedir.lock import is_still_at, open_locked
from penstock.errors import BadIndexError
from penstock.files import os_errors
from penstock.index.paths import is_plain_name, resolve_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self

    from penstock.cachedir.lock import Descriptor
    from penstock.cachedir.presence import ShardStamp
    from penstock.wire.item import StoredFile


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

    def __exit__(self, *error: object) -> None:
        self.close()


class Paths:
    """Paths of files below one directory. Links that lead out of it are refused; each folder is looked at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._prefix = f"{directory}/"
        self._checked: set[str] = set()

    def __call__(self, name: str) -> str:
        """Return the path of a file by its name, as text: a lease takes less time than to make a `Path`."""
        folder = name.rpartition("/")[0]
        if folder not in self._checked:
            path = resolve_inside(self.directory, name)
            if path.parent.is_dir():
                self._checked.add(folder)
        if not is_plain_name(name):
            raise BadIndexError(f"{name!r} is not a plain path inside the folder of the dataset", basename=name)
        return self._prefix + name


def try_lease(
    paths: Sequence[str], sizes: Sequence[int | None], stamp: ShardStamp, on_close: Callable[[], None]
) -> Lease | None:
    """Lease a shard by its files, or give None if they are not those that the table of the edition says."""
    first = paths[0]
    try:
        descriptor = open_locked(first, is_shared=True)
    except PermissionError:
        with os_errors(Path(first)):
            raise
    except OSError:
        return None
    if descriptor is None:
        return None  # it is being evicted
    status = os.fstat(descriptor.number)
    is_right = stamp.is_first(status, sizes[0]) and is_still_at(first, status)
    if not is_right or (len(paths) > 1 and not stamp.are_others_at(paths[1:], sizes[1:])):
        descriptor.close()
        return None
    # The time of access is the clock that everybody's eviction goes by.
    with suppress(OSError):  # a file of another user: its time of use is then not ours to set
        os.utime(descriptor.number, ns=(time.time_ns(), status.st_mtime_ns))
    return Lease(paths, descriptor, on_close)


def find_damaged(files: Iterable[tuple[Path, StoredFile]]) -> Path | None:
    """Return the first file that does not have the digest that the index says; None: all have theirs."""
    from penstock.fetcher.copies import digest_of  # which only those need who check digests

    for path, file in files:
        name, _, expected = (file.digest or "").partition(":")
        if name and digest_of(path, name) != expected:
            return path
    return None
