"""Which file is the right copy of an item: decided by whoever holds the item's stripe.

A copy is right if it was brought for this very edition; if it was brought for another one and digest, or size and
version, say that the object is the same; or if it was put there by somebody else and came with this very index, or has
the digest that the index says. It is not if another user put it where everybody may: he can change it at any time. What
is not right goes if it is ours and nobody uses it. Else it stays, and the right copy is kept apart from it.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from penstock.cachedir.editions import Edition
from penstock.cachedir.layout import apart_name
from penstock.cachedir.ledger import boot_id, flush_file, is_doubtful
from penstock.cachedir.presence import are_unchanged, is_name_taken, look
from penstock.cachedir.versions import is_settled_by_index, is_settled_by_store
from penstock.codecs.digest import digest
from penstock.codecs.unpack import map_file, release
from penstock.errors import ObjectNotFoundError, StoreError
from penstock.fetcher.origin import is_near

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.cachedir.folder import Folder
    from penstock.cachedir.ledger import Ledger, Record
    from penstock.cachedir.presence import FileStamp
    from penstock.fetcher.origin import Origin
    from penstock.storage.base import ObjectInfo
    from penstock.wire.item import Item, StoredFile

_log = logging.getLogger("penstock.cache")
# How long after it came a file is flushed: by then the system has written most of it by itself, and to hurry it along
# would take the disk from what comes next.
_FLUSHED_AFTER_S = 10.0
_LAST_FILES_S = 2.0


@dataclass(frozen=True, slots=True)
class Copy:
    """Where an item is, or is to be brought."""

    name: str  # of its first file, below the directory
    is_right: bool  # it is there; else it is to be brought
    record: Record | None = None  # if it is there, and ours

    is_apart: bool = False  # in the folder of its edition, because its plain name is taken

    def path_of(self, item: Item, file: str) -> str:
        """Return the name of one of the files of the item."""
        return apart_name(item.edition, file) if self.is_apart else file


class KeptFile(NamedTuple):
    """A compressed file that need not be fetched."""

    path: Path
    version: str | None
    is_ours: bool


class Copies:
    """Finds copies, for all directories and stores. Safe for threads."""

    def __init__(self, digesting: threading.Semaphore) -> None:
        self._digesting = digesting
        self._lock = threading.Lock()
        self._lists: dict[tuple[str, str], _Listing] = {}

    def begin(self, edition: Edition) -> None:
        """Drop what was listed for an edition: it is opened anew, and the store may have other objects now."""
        with self._lock:
            self._lists.pop((str(edition.directory), edition.name), None)

    # --- Without asking anybody -----------------------------------------------------------------------------

    def known(self, folder: Folder, item: Item) -> Copy | None:
        """Give the copy that was found to be right before, if it is there as it was; quick."""
        if item.refresh:
            return None
        if item.number is None:
            return self._known_object(folder, item)
        edition = _edition(folder.directory, item.edition)
        entry = edition.entry(item.number)
        if not entry.is_known:
            return None
        name = edition.name_of(item.name, entry)
        stamps = [look(folder.directory, edition.name_of(part.raw.name, entry)) for part in item.parts]
        if any(stamp is None for stamp in stamps) or not entry.is_of(stamps):  # type: ignore[arg-type]
            return None
        return Copy(name, is_right=True, record=folder.ledger.get(name))

    def _known_object(self, folder: Folder, item: Item) -> Copy | None:
        for name in (item.name, apart_name(item.edition, item.name)):
            record = folder.ledger.get(name)
            if record is None or record.edition != item.edition or not _is_made_of(record, item):
                continue
            if self._is_trusted(folder, record):
                return Copy(name, is_right=True, record=record)
        return None

    # --- With the item's stripe held ------------------------------------------------------------------------

    def find(self, folder: Folder, item: Item, origin: Origin, evict: Callable[[str], bool]) -> Copy:
        """Find the right copy, or say where it is to be brought; what is in its way goes, if that is allowed."""
        known = self.known(folder, item)
        if known is not None:
            return known
        stamp = look(folder.directory, item.name)
        if stamp is None and not is_name_taken(folder.directory, item.name):
            return Copy(item.name, is_right=False)
        record = folder.ledger.get(item.name)
        if record is None or stamp is None or record.files[0] != stamp:
            return self._find_foreign(folder, item)
        if item.refresh:  # it is ours, and replaced when the new one is here
            is_kept = self._is_wanted_elsewhere(folder, item, record)
            return self._apart(folder, item) if is_kept else Copy(item.name, is_right=False)
        if self._is_right(folder, item, record, origin):
            record = self._take_over(folder, item, record)
            return Copy(item.name, is_right=True, record=record)
        if self._is_wanted_elsewhere(folder, item, record) or not evict(item.name):
            return self._apart(folder, item)
        return Copy(item.name, is_right=False)

    def kept(self, folder: Folder, item: Item, file: StoredFile) -> KeptFile | None:
        """Give a compressed file that lies there and is the right one: then only unpacking is left."""
        stamp = look(folder.directory, file.name)
        if stamp is None:
            return None
        path = folder.directory / file.name
        record = folder.ledger.get(item.name)
        if record is None or stamp not in record.files:
            return KeptFile(path, None, is_ours=False) if self._is_right_file(folder, item, stamp, file) else None
        is_of_it = record.edition == item.edition and file.key in record.keys
        if item.refresh or not is_of_it or not _is_trusted_boot(record):  # what it was unpacked to was damaged
            return None
        return KeptFile(path, record.versions[record.keys.index(file.key)], is_ours=True)

    def _is_right(self, folder: Folder, item: Item, record: Record, origin: Origin) -> bool:
        if not self._is_trusted(folder, record):
            return False
        if record.edition == item.edition:
            return _is_made_of(record, item)
        answer = is_settled_by_index(record, item, origin.name)
        if answer is None:
            answer = is_settled_by_store(record, [self._ask(folder, item, key, origin) for key in record.keys])
        return answer

    def _is_trusted(self, folder: Folder, record: Record) -> bool:
        return _is_trusted_boot(record) and are_unchanged(folder.directory, record.files)

    def _take_over(self, folder: Folder, item: Item, record: Record) -> Record:
        """Note for which edition a copy is right now: it stays for as long as that one is open."""
        if record.edition != item.edition:
            record = replace(record, edition=item.edition)
            folder.ledger.put(record)
        confirm(folder, item, record.files, is_apart=False)
        return record

    def _is_wanted_elsewhere(self, folder: Folder, item: Item, record: Record) -> bool:
        """Tell whether the copy in the way belongs to another edition that somebody reads."""
        return record.edition not in ("", item.edition) and _edition(folder.directory, record.edition).is_open()

    def _apart(self, folder: Folder, item: Item) -> Copy:
        name = apart_name(item.edition, item.name)
        record = folder.ledger.get(name)
        if record is not None and not item.refresh and self._is_trusted(folder, record):
            confirm(folder, item, record.files, is_apart=True)
            return Copy(name, is_right=True, record=record, is_apart=True)
        return Copy(name, is_right=False, is_apart=True)

    # --- Files of others ------------------------------------------------------------------------------------

    def _find_foreign(self, folder: Folder, item: Item) -> Copy:
        """Use a file that somebody else put there if it is the right one; it is never replaced or deleted."""
        files = [
            stamp
            for part in item.parts
            if (stamp := look(folder.directory, part.raw.name)) and self._is_right_file(folder, item, stamp, part.raw)
        ]
        if item.refresh or len(files) < len(item.parts):
            return self._apart(folder, item)
        confirm(folder, item, files, is_apart=False)
        return Copy(item.name, is_right=True)

    def _is_right_file(self, folder: Folder, item: Item, stamp: FileStamp, file: StoredFile) -> bool:
        if file.num_bytes not in (None, stamp.num_bytes) or _is_strangers(folder.directory, stamp.name):
            return False
        about = _edition(folder.directory, item.edition).about()
        is_vouched = about is not None and about.trusts_found and _is_trusted_file(folder.directory, stamp.name)
        if file.digest is None or (is_vouched and not item.validates):
            return is_vouched
        name, _, expected = file.digest.partition(":")
        with self._digesting, suppress(StoreError):
            return digest_of(folder.directory / stamp.name, name) == expected
        return False

    # --- What the store has now -----------------------------------------------------------------------------

    def _ask(self, folder: Folder, item: Item, key: str, origin: Origin) -> ObjectInfo | None:
        """Ask what an object is now: one list for the whole edition, where the store can list and is far away."""
        known = (str(folder.directory), item.edition)
        with self._lock:
            listing = self._lists.setdefault(known, _Listing())
        return listing.ask(origin, key)


class _Listing:
    """What a store had of a dataset when it was asked first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, ObjectInfo] | None = None
        self._can_list = True

    def ask(self, origin: Origin, key: str) -> ObjectInfo | None:
        if not is_near(origin) and self._can_list:
            with self._lock:
                if self._objects is None and self._can_list:
                    try:
                        self._objects = {info.key: info for info in origin.store.list()}
                    except StoreError:  # web servers have no lists, and not everybody may see them
                        self._can_list = False
            if self._objects is not None:
                return self._objects.get(key)
        try:
            return origin.store.stat(key)
        except ObjectNotFoundError:
            return None


def digest_of(path: Path, name: str = "sha256") -> str:
    """Digest a file; of an index, this is what names its edition."""
    data = map_file(path)
    try:
        return digest([data], [name])[name]
    finally:
        release(data)


@lru_cache(64)
def _edition(directory: Path, name: str) -> Edition:
    """Give an edition; it is needed for each item, and its paths take a while to put together."""
    return Edition(directory, name)


def confirm(folder: Folder, item: Item, files: Sequence[FileStamp], *, is_apart: bool) -> None:
    """Note in the table of an edition which files are a shard, for all readers."""
    if item.number is not None:
        edition = _edition(folder.directory, item.edition)
        edition.confirm(item.number, files[: len(item.parts)], is_apart=is_apart)


def _is_trusted_boot(record: Record) -> bool:
    """Tell whether files are sure to hold what was written to them: power may have failed before a flush."""
    return record.boot is None or record.boot == boot_id()


def _is_made_of(record: Record, item: Item) -> bool:
    """Tell whether copies were made of the objects, and of as many bytes, as an item of the same edition."""
    stored = [part.stored for part in item.parts]
    return record.keys == tuple(file.key for file in stored) and all(
        file.num_bytes in (None, num_bytes) for file, num_bytes in zip(stored, record.stored_bytes, strict=True)
    )


def _is_strangers(directory: Path, name: str) -> bool:
    """Tell whether a file lies where everybody may put files, as in /tmp, and is another user's.

    He may change it at any time, also after it was looked at.
    """
    try:
        status = os.lstat(directory / name)
        can_anybody_write = bool(directory.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return True
    return can_anybody_write and status.st_uid not in (0, os.getuid())


def _is_trusted_file(directory: Path, name: str) -> bool:
    """Tell whether a file belongs to this user, or to the system, and was not spoilt by a loss of power."""
    try:
        status = os.lstat(directory / name)
    except OSError:
        return False
    return status.st_uid in (0, os.getuid()) and not is_doubtful(directory, status)


# --- Files that can be trusted after a loss of power --------------------------------------------------------


class _Waiting(NamedTuple):
    directory: Path
    record: Record
    ledger: Ledger
    due_at: float


class Flusher:
    """One thread, started with the first file. What it does not get to is not trusted after the next boot."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, directory: Path, record: Record, ledger: Ledger) -> None:
        """Flush the files of a record some time soon."""
        with self._changed:
            self._waiting.append(_Waiting(directory, record, ledger, time.monotonic() + _FLUSHED_AFTER_S))
            if len(self._waiting) == 1:
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="penstock-flush", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Flush what waits now, but do not take long: a disk may be slow."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_LAST_FILES_S)

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            directory, record, ledger, _ = waiting
            try:
                for file in record.files:
                    flush_file(directory / file.name)
                ledger.note_flushed(record)
            except FileNotFoundError:
                continue  # it was evicted meanwhile
            except OSError as error:
                _log.warning("cannot flush %s in %s to the disk: %s", record.name, directory, error)

    def _next(self) -> _Waiting | None:
        """Wait for a file whose time has come; None: there will be no more."""
        with self._changed:
            while not self._is_closed:
                left_s = self._waiting[0].due_at - time.monotonic() if self._waiting else None
                if left_s is not None and left_s <= 0:
                    break
                self._changed.wait(left_s)
            return self._waiting.popleft() if self._waiting else None
