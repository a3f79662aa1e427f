"""Editions of a dataset: what its index was when a job opened it, and which copies in the cache are of it.

An edition has a folder of its own below the control folder of a cache directory:

    index.json      the index, also for when the store is away
    about.json      where it came from, and its version there
    current-BOOT    a table of stamps: for each shard, the file that was found to be the right one
    seen            for each shard, the version of its objects that was seen first by the jobs that run now
    checked         for each shard, the stamp of the files whose digests the jobs that run now have checked
    files/          copies whose plain names are taken by something else

A shard is there if its file has the stamp that the table says: readers look there, and need not ask the fetcher.
"""

from __future__ import annotations

import json
import os
import struct
import weakref
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.cachedir.layout import apart_name, editions_folder
from penstock.cachedir.ledger import boot_id
from penstock.cachedir.lock import open_locked, wait_for_lock
from penstock.cachedir.presence import APART, ShardStamp
from penstock.errors import CacheError
from penstock.files import atomic_write, make_folders, our_error
from penstock.index.paths import INDEX_NAME
from penstock.outside_text import Bounded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.cachedir.lock import Descriptor
    from penstock.storage.base import ObjectInfo

SOUGHT = " files "  # stands between a store and what was looked for there
_ABOUT = "about.json"
_NAME = Bounded("[0-9a-f]+", 255)  # whatever has another one is not ours to remove
_ENTRY = struct.Struct("<QqQQ")
_SEEN_NAME, _CHECKED_NAME = "seen", "checked"
_SEEN = struct.Struct("<Q")
_PATIENCE_S = 60.0  # a table is locked by others only while they look at it, or remove the edition


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Where an edition came from."""

    source: str  # the store, without secrets, and what was looked for there
    etag: str | None  # of the index
    modified_ns: int | None
    index_digest: str
    trusts_found: bool  # whether files that no ledger knew lay there beside this very index
    listing: str | None = None  # of an index that was made here, what it was made of

    @property
    def place(self) -> str:
        """The store alone."""
        return self.source.partition(SOUGHT)[0]

    def is_version(self, info: ObjectInfo) -> bool:
        """Return whether the store still has the index of this edition."""
        return (self.etag, self.modified_ns) == (info.etag, info.modified_ns)

    def is_after(self, info: ObjectInfo) -> bool:
        """Return whether the store has another index by now, which is no newer: earlier data were put back."""
        if self.modified_ns is None or info.modified_ns is None or self.is_version(info):
            return False
        return info.modified_ns <= self.modified_ns


class Edition:
    """The folder of one edition."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        self.folder = editions_folder(directory) / name

    @property
    def index_path(self) -> Path:
        """The copy of its index."""
        return self.folder / INDEX_NAME

    @property
    def table_path(self) -> Path:
        """The table of this boot: after another one, all that was not flushed is looked at anew."""
        return self.folder / f"current-{(boot_id() or 'any').replace('-', '')[:12]}"

    def exists(self) -> bool:
        """Return whether it was opened before, and not removed since."""
        return (self.folder / _ABOUT).exists() and self.index_path.exists()

    def create(self, index: Path, about: About) -> None:
        """Make the folder, moving the index in; what says that it is complete comes last."""
        make_folders(self.folder, 0o700)
        index.replace(self.index_path)
        self.table_path.touch(mode=0o600)
        with atomic_write(self.folder / _ABOUT) as part:
            part.touch(mode=0o600)
            part.write_text(json.dumps(asdict(about)))

    def reopen(self) -> None:
        """Note that it is opened again, maybe in another boot."""
        if not self.table_path.exists():
            for old in self.folder.glob("current-*"):
                old.unlink(missing_ok=True)
            self.table_path.touch(mode=0o600)
        if not self.is_open():
            for name in (_SEEN_NAME, _CHECKED_NAME):
                (self.folder / name).unlink(missing_ok=True)
        os.utime(self.folder / _ABOUT)

    def about(self) -> About | None:
        """Return where it came from; None if its folder is gone or was left unfinished."""
        try:
            return About(**json.loads((self.folder / _ABOUT).read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def opened_s(self) -> float:
        """Return when it was opened last."""
        try:
            return (self.folder / _ABOUT).stat().st_mtime
        except OSError:
            return 0.0

    def is_open(self) -> bool:
        """Return whether any process has it open."""
        try:
            held = open_locked(self.table_path)
        except OSError:
            return False
        if held is not None:
            held.close()
        return held is None

    # --- The table, as the fetcher writes it ----------------------------------------------------------------

    def entry(self, number: int) -> ShardStamp:
        """Read what the table says of a shard."""
        return ShardStamp(*_ENTRY.unpack(_read_at(self.table_path, number, _ENTRY.size)))

    def name_of(self, name: str, entry: ShardStamp) -> str:
        """Return the name under which a file of a shard lies."""
        return apart_name(self.name, name) if entry.place == APART else name

    def confirm(self, number: int, entry: ShardStamp) -> None:
        """Announce which files are a shard."""
        self._write(self.table_path, number, _ENTRY.pack(*entry))

    def is_checked(self, number: int, entry: ShardStamp) -> bool:
        """Return whether the digests of just these files of a shard were checked since the jobs that run now began."""
        return _read_at(self.folder / _CHECKED_NAME, number, _ENTRY.size) == _ENTRY.pack(*entry)

    def note_checked(self, number: int, entry: ShardStamp) -> None:
        """Spare other processes, and later leases, checking these files of a shard again."""
        self._write(self.folder / _CHECKED_NAME, number, _ENTRY.pack(*entry))

    def seen(self, number: int) -> int:
        """Return a fingerprint of the version of a shard that was seen first; 0: none was."""
        return int(_SEEN.unpack(_read_at(self.folder / _SEEN_NAME, number, _SEEN.size))[0])

    def see(self, number: int, version: int) -> None:
        """Announce which version of a shard was seen first."""
        self._write(self.folder / _SEEN_NAME, number, _SEEN.pack(version))

    def _write(self, path: Path, number: int, data: bytes) -> None:
        # The cache may have been deleted under a running job, which then needs its table again.
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            try:
                file = os.open(path, flags, 0o600)
            except FileNotFoundError:
                make_folders(self.folder, 0o700)
                file = os.open(path, flags, 0o600)
            try:
                os.pwrite(file, data, number * len(data))
            finally:
                os.close(file)
        except OSError as error:
            raise our_error(error, path) from error

    def remove_unused(self) -> bool:
        """Delete the folder unless a process has it open; tell whether it is gone. Copies in it must be gone already.

        Its table is locked meanwhile: who is about to open it waits that long, and then finds that it is lost.
        """
        import shutil  # which takes a while to load, and is seldom needed

        with ExitStack() as stack:
            with suppress(FileNotFoundError):  # it was not opened since the machine was started
                held = open_locked(self.table_path)
                if held is None:
                    return False
                stack.enter_context(held)
            (self.folder / _ABOUT).unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)
        return not self.folder.exists()


def _read_at(path: Path, number: int, size: int) -> bytes:
    """Read one of equally long entries; one that was never written is zero."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return bytes(size)
    try:
        return os.pread(file, size, number * size).ljust(size, b"\0")
    finally:
        os.close(file)


class OpenEdition:
    """An edition as a reader has it open: it is not removed meanwhile. Belongs to its process."""

    def __init__(self, edition: Edition) -> None:
        self.edition = edition
        self._held: Descriptor | None = None

    def entry(self, number: int) -> ShardStamp | None:
        """Return what the table says of a shard, or None if no file is known to be it."""
        held = self._held
        if held is None:
            if not self.hold() or self._held is None:
                return None
            held = self._held
        data = os.pread(held.number, _ENTRY.size, number * _ENTRY.size)
        if len(data) < _ENTRY.size:
            return None
        entry = ShardStamp(*_ENTRY.unpack(data))
        return entry if entry.place else None

    def hold(self) -> bool:
        """Keep the edition from being removed; tell whether it is there."""
        if self._held is None:
            self._held = _hold(self.edition.table_path)
        return not self.is_lost()

    def is_lost(self) -> bool:
        """Return whether the table was removed, maybe with the whole cache."""
        return self._held is None or os.fstat(self._held.number).st_nlink == 0

    def close(self) -> None:
        """Let it go; the last one in the process gives up the lock."""
        self._held = None


# By path: all datasets of a process that read the same edition share one descriptor, which closes with the last.
_tables: weakref.WeakValueDictionary[Path, Descriptor] = weakref.WeakValueDictionary()


def _hold(path: Path) -> Descriptor | None:
    """Open a table and lock it against removal; None: it is not there."""
    held = _tables.get(path)
    if held is not None and held.number >= 0 and os.fstat(held.number).st_nlink:
        return held
    try:
        held = wait_for_lock(partial(open_locked, path, is_shared=True), path, _PATIENCE_S)
    except CacheError:
        raise
    except OSError:
        return None
    _tables[path] = held
    return held


def editions_in(directory: Path) -> list[Edition]:
    """List all editions of a directory."""
    try:
        found = [entry.name for entry in os.scandir(editions_folder(directory)) if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [Edition(directory, name) for name in sorted(found) if _NAME.fullmatch(name)]


def last_edition(directory: Path, source: str, digest_of: Callable[[Path], str]) -> Edition | None:
    """Return the edition of a store that was opened last and whose index is whole: power may have failed since."""
    for edition in sorted(editions_in(directory), key=Edition.opened_s, reverse=True):
        about = edition.about()
        if about is None or about.source != source or not edition.exists():
            continue
        if digest_of(edition.index_path) == about.index_digest:
            return edition
    return None
