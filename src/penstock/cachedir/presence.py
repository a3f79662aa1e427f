"""Is it there, and is it what was put there? That is asked here of files in a cache directory.

A file is known by its stamp: size, inode and time of change. To write to a file, or to put another in its place,
gives it another stamp. Links are not followed: what they lead to is not ours.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadIndexError
from penstock.files import os_errors
from penstock.index.paths import resolve_inside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_PLAIN, APART = 1, 2  # 0: nowhere, as what was never written reads
_MIX = 0x9E3779B97F4A7C15
_LEAST_TRIES, _TRYING_S = 50, 20.0


@dataclass(frozen=True, slots=True)
class FileStamp:
    """One file as it was published."""

    name: str  # below the directory
    num_bytes: int
    inode: int
    mtime_ns: int


def stamp_of(name: str, status: os.stat_result) -> FileStamp:
    """Describe a file as it is now."""
    return FileStamp(name, status.st_size, status.st_ino, status.st_mtime_ns)


def look(directory: Path, name: str) -> FileStamp | None:
    """Describe a file of a directory, or give None if there is no plain file of that name."""
    status = _status(directory, name)
    return None if status is None else stamp_of(name, status)


def status_if_unchanged(directory: Path, stamp: FileStamp) -> os.stat_result | None:
    """Return what the system says of a file that is there as it was published; None: it is not, or it is another."""
    try:
        status = _status(directory, stamp.name)
    except BadIndexError:  # its folder is a link now, to somewhere else
        return None
    return status if status is not None and stamp_of(stamp.name, status) == stamp else None


def are_unchanged(directory: Path, stamps: Iterable[FileStamp]) -> bool:
    """Return whether files are all there as they were published."""
    return all(status_if_unchanged(directory, stamp) is not None for stamp in stamps)


def tries() -> Iterator[None]:
    """Try to get hold of something that others delete as soon as it is there: many times, and for long enough."""
    deadline, num_tries = time.monotonic() + _TRYING_S, 0
    while num_tries < _LEAST_TRIES or time.monotonic() < deadline:
        yield
        num_tries += 1


def _status(directory: Path, name: str) -> os.stat_result | None:
    path = resolve_inside(directory, name) if "/" in name else directory / name
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        with os_errors(path):  # a name may be too long for this disk
            raise
    return status if stat.S_ISREG(status.st_mode) else None


class ShardStamp(NamedTuple):
    """The stamp of all files of a shard, whose sizes the index says: that of the first, and the others' in one number.

    It is what an edition notes of the files that were found to be the right ones, four numbers for each shard.
    """

    inode: int
    mtime_ns: int
    others: int
    place: int  # nowhere, under their plain names, or apart from these, in the folder of their edition

    @classmethod
    def of(cls, files: Sequence[FileStamp], *, is_apart: bool) -> ShardStamp:
        """Stamp files that are right."""
        first, *others = files
        mixed = _mix((file.inode, file.mtime_ns) for file in others)
        return cls(first.inode, first.mtime_ns, mixed, APART if is_apart else _PLAIN)

    def is_of(self, files: Sequence[FileStamp]) -> bool:
        """Return whether these are the files."""
        return self[:3] == ShardStamp.of(files, is_apart=False)[:3]

    def is_first(self, status: os.stat_result, num_bytes: int | None) -> bool:
        """Return whether this is the first file, in the size that the index says, if it does."""
        is_same = status.st_ino == self.inode and status.st_mtime_ns == self.mtime_ns
        return is_same and num_bytes in (None, status.st_size)

    def is_first_at(self, path: str, num_bytes: int | None) -> bool:
        """Return whether the first file is there, which stands for all: it comes last and goes first."""
        try:
            status = os.lstat(path)
        except OSError:
            return False
        return self.is_first(status, num_bytes)

    def are_others_at(self, paths: Sequence[str], sizes: Sequence[int | None]) -> bool:
        """Return whether the further files are there."""
        try:
            found = [os.lstat(path) for path in paths]
        except OSError:
            return False
        are_plain = all(stat.S_ISREG(status.st_mode) for status in found)
        are_whole = all(size in (None, status.st_size) for status, size in zip(found, sizes, strict=True))
        return are_plain and are_whole and _mix((each.st_ino, each.st_mtime_ns) for each in found) == self.others


def _mix(stamps: Iterable[tuple[int, int]]) -> int:
    mixed = 0
    for inode, mtime_ns in stamps:
        mixed = (mixed * _MIX + inode * 31 + mtime_ns) % 2**64
    return mixed
