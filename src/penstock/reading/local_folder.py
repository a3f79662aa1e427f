"""A dataset that is read where it lies, in a folder of this machine, and never mixed with what replaces it."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from penstock.cachedir.once import keep_index
from penstock.errors import CorruptShardError, ObjectChangedError, ObjectNotFoundError, listed, meant
from penstock.files import os_errors, read_file
from penstock.formats.parts import open_shard
from penstock.index.catalog import parse_index
from penstock.index.paths import INDEX_NAME, WHAT_IS_READ, resolve_inside

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.formats.base import ReadOptions, ShardReader
    from penstock.index.model import Index, IndexedShard

_MOST_TRIES = 10
# A file that was changed later than that may be changed again without a trace in its time.
_SETTLED_NS = 2_000_000_000


class InPlace(Protocol):
    """Shards that can be read where they lie, on this machine."""

    @property
    def path(self) -> Path:
        """The folder that names are told below."""

    def is_raw(self, info: IndexedShard) -> bool:
        """Return whether a shard lies there as it is read."""

    def open_shard(self, info: IndexedShard, options: ReadOptions) -> ShardReader:
        """Open a shard, checking that it is what the index says."""


@dataclass(frozen=True)
class LocalFolder:
    """A folder, and its index as it was when it was opened.

    An index is written after its shards. So where the index is another one, a shard that is newer than the first one
    was written again; and if the index is no newer, earlier data were put back. Else data were appended.
    """

    path: Path
    index: Index
    validate_hash: str | None
    _stamp: tuple[int, int, int] = field(repr=False)
    _validated: set[str] = field(default_factory=set, repr=False, compare=False)

    @classmethod
    def open(cls, path: Path, validate_hash: str | None = None) -> LocalFolder:
        """Read the index; one that is replaced meanwhile is read again."""
        for _ in range(_MOST_TRIES):
            stamp = _stamp_of(path)
            index = _read_index(path, stamp)
            if _stamp_of(path) == stamp and stamp is not None:
                return cls(path, index, validate_hash, stamp)
        raise ObjectChangedError(
            f"the index of {path} keeps changing: wait until its writer has finished, then try again"
        )

    @property
    def version(self) -> str:
        """Distinguish these data from others, and from earlier ones here; a copy with its times kept is the same."""
        modified_ns, num_bytes, _ = self._stamp
        return f"{self.path.name}-{modified_ns}-{num_bytes}"

    @property
    def is_compressed(self) -> bool:
        """Whether any shard has to be unpacked before it is read."""
        return self.index.columns.is_packed

    def open_shard(
        self,
        info: IndexedShard,
        options: ReadOptions,
        *,
        validate_hash: str | None = None,
        unpack_dir: Path | None = None,
        memory_limit: int | None = None,
    ) -> ShardReader:
        """Open a shard, as `formats.parts.open_shard` does; the digest of this folder's own is checked once."""
        if validate_hash is None and info.name not in self._validated:
            validate_hash = self.validate_hash
        try:
            reader = open_shard(
                self.path, info, options, validate_hash=validate_hash, unpack_dir=unpack_dir, memory_limit=memory_limit
            )
        except ObjectNotFoundError:
            self._check_index(info.name)
            raise
        except CorruptShardError:
            self._check_time(info)
            raise
        try:
            self._check_time(info)
        except BaseException:
            reader.close()
            raise
        if self.validate_hash is not None:  # else there is nothing to remember, of shards that may be very many
            self._validated.add(info.name)
        return reader

    def has(self, info: IndexedShard) -> bool:
        """Return whether all files of a shard lie here, as they are read or as they are stored."""
        return self.is_raw(info) or all(
            (path := resolve_inside(self.path, part.stored.basename)).is_file()
            and path.stat().st_size == part.stored.num_bytes
            for part in info.parts
        )

    def is_raw(self, info: IndexedShard) -> bool:
        """Return whether all files of a shard lie here ready to be read, none older than its compressed form."""
        for part in info.parts:
            path = resolve_inside(self.path, part.raw.basename)
            try:
                status = path.stat()
            except FileNotFoundError:
                return False
            if status.st_size != part.raw.num_bytes:
                return False
            if part.packed is not None and self._mtime_ns(part.packed.basename) > status.st_mtime_ns:
                return False
        return True

    def _check_time(self, info: IndexedShard) -> None:
        index = _stamp_of(self.path)
        if index == self._stamp:
            return
        names = {file.basename for part in info.parts for file in (part.raw, part.stored)}
        is_put_back = index is not None and index[0] <= self._stamp[0]
        if is_put_back or any(self._mtime_ns(name) > self._stamp[0] for name in names):
            self._check_index(info.name)

    def _mtime_ns(self, name: str) -> int:
        try:
            return resolve_inside(self.path, name).stat().st_mtime_ns
        except OSError:  # not there, or no file: opening it says so
            return 0

    def _check_index(self, name: str) -> None:
        if _stamp_of(self.path) != self._stamp:
            raise ObjectChangedError(
                f"{self.path} was rewritten while this job was reading it: a job reads the same version of its"
                " data from beginning to end. Restart the job to read the new version, or write new data to a new"
                " folder",
                path=str(self.path),
                shard=name,
            )


def _read_index(folder: Path, stamp: tuple[int, int, int] | None) -> Index:
    """Read the index of a folder, from the columns that were kept of it if it is a large one."""
    if stamp is None or time.time_ns() - stamp[0] < _SETTLED_NS:
        return read_local_index(folder)
    name = hashlib.sha256(f"{folder.absolute()} {stamp}".encode()).hexdigest()[:32]
    return keep_index(name, stamp[1], partial(read_local_index, folder))


def read_local_index(folder: Path) -> Index:
    """Read the index of a local dataset."""
    path = folder / INDEX_NAME
    with os_errors(path):
        if not path.exists():
            raise ObjectNotFoundError(_whats_there(folder), path=str(path))
    return parse_index(read_file(path), str(path))


def _whats_there(folder: Path) -> str:
    """Explain that a folder has no index, by what there is instead."""
    if folder.is_dir():
        below = sorted(path.parent.name for path in folder.glob(f"*/{INDEX_NAME}"))
        hint = f". Its folders {listed(below)} have one: name one of them, in the path or as split=" if below else ""
        return f"there is no dataset in {folder}: {INDEX_NAME} is missing{hint}. {WHAT_IS_READ}"
    if folder.exists():
        return f"{folder} is a file, and no folder of a dataset. {WHAT_IS_READ}"
    there = next(path for path in folder.absolute().parents if path.exists())
    missing = folder.absolute().relative_to(there).parts[0]
    if not there.is_dir():
        return f"there is no folder {folder}, for {there} is a file: check the path"
    found = [path.name for path in there.iterdir() if not path.name.startswith(".")]
    instead = f"{there} has {listed(found) or 'nothing in it'}"
    return f"there is no folder {folder}: {instead}; check the path, and split={meant(missing, found)}. {WHAT_IS_READ}"


def _stamp_of(folder: Path) -> tuple[int, int, int] | None:
    """Describe the index file of a folder as it is now; None: there is none."""
    path = folder / INDEX_NAME
    try:
        with os_errors(path):
            status = path.stat()
    except ObjectNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
