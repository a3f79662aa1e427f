"""Which file is the right copy of an item, decided with the item's stripe held; and which object is the right one.

A copy is right if it was brought for this very edition; if it was brought for another one and digest, or size and
version, say that the object is the same; or if it was put there by others and came with this very index, or has the
digest that the index says. It is not if another user put it where all may, who can change it at any time. What is
not right goes if it is ours and not in use. Else it stays, and the right copy is kept apart from it.

A job reads one edition from beginning to end. Where the index has digests, they say what an object must be. Where it
has none:

- What was seen of a shard first, whole or by ranges, is what every later read of it must be.
- An index is written after its shards. So a shard that is older than the index of its edition is of it, and needs no
  question; of a newer one it is asked whether the store still has that index. Datasets that were copied may have shards
  newer than their index: then the newest of them is the mark for those that follow.
- A shard that was written after the job had opened the dataset is of another one, whatever the index says.
- Older data that are put back, with their times, have an index that is older than the edition's: it is looked at now
  and then. One that is newer is no reason to end, while shards are older: data are appended to.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from penstock.cachedir.editions import About, Edition
from penstock.cachedir.layout import apart_name
from penstock.cachedir.ledger import boot_id, is_doubtful
from penstock.cachedir.presence import ShardStamp, are_unchanged, look
from penstock.cachedir.versions import CLOCKS_DIFFER_NS, fingerprint, is_young
from penstock.codecs.digest import digest
from penstock.codecs.unpack import map_file, release
from penstock.errors import ObjectChangedError, ObjectNotFoundError, StoreError
from penstock.fetcher.pieces import is_near
from penstock.index.paths import INDEX_NAME
from penstock.storage.base import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.cachedir.folder import Folder
    from penstock.cachedir.ledger import Record
    from penstock.cachedir.presence import FileStamp
    from penstock.fetcher.pieces import StoreHandle
    from penstock.wire.item import Item, StoredFile

# A store that is far away is asked about its index no more often than this, if nothing else speaks for a change.
_ASK_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Copy:
    """Where an item is, or is to be brought."""

    name: str  # of its first file, below the directory
    is_right: bool  # it is there; else it is to be brought
    record: Record | None = None  # if it is there, and ours

    is_apart: bool = False  # in the folder of its edition, because its plain name is taken


class KeptFile(NamedTuple):
    """A compressed file that need not be fetched."""

    path: Path
    version: str | None
    is_ours: bool


class CopyResolver:
    """Finds copies, for all directories and stores. Safe for threads."""

    def __init__(self, digesting: threading.Semaphore) -> None:
        self._digesting = digesting
        self._lock = threading.Lock()
        self._lists: dict[tuple[str, str], _Listing] = {}

    def begin(self, edition: Edition) -> None:
        """Drop what was listed for an edition: it is opened anew, and the store may have other objects now."""
        with self._lock:
            self._lists.pop((str(edition.directory), edition.name), None)

    # --- Without a question -----------------------------------------------------------------------------

    def known(self, folder: Folder, item: Item) -> Copy | None:
        """Return the copy that was found to be right before, if it is there as it was; quick."""
        if item.refresh:
            return None
        if item.number is None:
            return self._known_object(folder, item)
        edition = _edition(folder.directory, item.edition)
        entry = edition.entry(item.number)
        if not entry.place:
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

    def find(self, folder: Folder, item: Item, handle: StoreHandle, evict: Callable[[str], bool]) -> Copy:
        """Find the right copy, or say where it is to be brought; what is in its way goes, if that is allowed."""
        known, name = self.known(folder, item), item.name
        if known is not None:
            return known
        stamp = look(folder.directory, name)
        if stamp is None and not os.path.lexists(folder.directory / name):
            return Copy(name, is_right=False)
        record = folder.ledger.get(name)
        if record is None or stamp is None or record.files[0] != stamp:
            return self._find_foreign(folder, item)
        if item.refresh:  # it is ours, and replaced when the new one is here
            is_kept = self._is_wanted_elsewhere(folder, item, record)
            return self._apart(folder, item) if is_kept else Copy(name, is_right=False)
        if self._is_right(folder, item, record, handle):
            record = self._take_over(folder, item, record)
            return Copy(name, is_right=True, record=record)
        if self._is_wanted_elsewhere(folder, item, record) or not evict(name):
            return self._apart(folder, item)
        return Copy(name, is_right=False)

    def kept(self, folder: Folder, item: Item, file: StoredFile) -> KeptFile | None:
        """Return a compressed file that lies there and is the right one: then only unpacking is left."""
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

    def _is_right(self, folder: Folder, item: Item, record: Record, handle: StoreHandle) -> bool:
        if not self._is_trusted(folder, record):
            return False
        if record.edition == item.edition:
            return _is_made_of(record, item)
        answer = record.is_settled_by_index(item, handle.name)
        if answer is None:
            answer = record.is_settled_by_store([self._ask(folder, item, key, handle) for key in record.keys])
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
        """Return True if the copy in the way belongs to another edition that is read."""
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
        """Use a file that others put there if it is the right one; it is never replaced or deleted."""
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

    def _ask(self, folder: Folder, item: Item, key: str, handle: StoreHandle) -> ObjectInfo | None:
        """Ask what an object is now: one list for the whole edition, where the store can list and is far away."""
        known = (str(folder.directory), item.edition)
        with self._lock:
            listing = self._lists.setdefault(known, _Listing())
        return listing.ask(handle, key)


class _Listing:
    """What a store had of a dataset when it was asked first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, ObjectInfo] | None = None
        self._can_list = True

    def ask(self, handle: StoreHandle, key: str) -> ObjectInfo | None:
        if not is_near(handle) and self._can_list:
            with self._lock:
                if self._objects is None and self._can_list:
                    try:
                        self._objects = {info.key: info for info in handle.store.list()}
                    except StoreError:  # web servers have no lists, and not all may see them
                        self._can_list = False
            if self._objects is not None:
                return self._objects.get(key)
        try:
            return handle.store.stat(key)
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
    """Return an edition; it is needed for each item, and its paths take a while to put together."""
    return Edition(directory, name)


def confirm(folder: Folder, item: Item, files: Sequence[FileStamp], *, is_apart: bool) -> None:
    """Note in the table of an edition which files are a shard, for all readers."""
    if item.number is not None:
        entry = ShardStamp.of(files[: len(item.parts)], is_apart=is_apart)
        _edition(folder.directory, item.edition).confirm(item.number, entry)


def _is_trusted_boot(record: Record) -> bool:
    """Return True if files are sure to hold what was written to them: power may have failed before a flush."""
    return record.boot is None or record.boot == boot_id()


def _is_made_of(record: Record, item: Item) -> bool:
    """Return True if copies were made of the objects, and of as many bytes, as an item of the same edition."""
    stored = [part.stored for part in item.parts]
    return record.keys == tuple(file.key for file in stored) and all(
        file.num_bytes in (None, num_bytes) for file, num_bytes in zip(stored, record.stored_bytes, strict=True)
    )


def _is_strangers(directory: Path, name: str) -> bool:
    """Return True if a file lies where all may put files, as in /tmp, and is another user's.

    That user may change it at any time, also after it was looked at.
    """
    try:
        status = os.lstat(directory / name)
        can_all_write = bool(directory.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return True
    return can_all_write and status.st_uid not in (0, os.getuid())


def _is_trusted_file(directory: Path, name: str) -> bool:
    """Return True if a file belongs to this user, or to the system, and was not spoilt by a loss of power."""
    try:
        status = os.lstat(directory / name)
    except OSError:
        return False
    return status.st_uid in (0, os.getuid()) and not is_doubtful(directory, status)


# --- Is the object the right one? ---------------------------------------------------------------------------


@dataclass
class _Watched:
    """What is known of one edition while it is read."""

    about: About | None
    opened_ns: int
    mark_ns: int | None  # shards up to this time were there when the index was last seen unchanged
    asked_at: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    tags: dict[str, str | None] = field(default_factory=dict)  # of objects that were read by ranges, by key


class EditionWatch:
    """Watches the editions that are open. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[tuple[str, str], _Watched] = {}

    def begin(self, edition: Edition) -> None:
        """Note that a job opens an edition now; if no other has it open, what was seen before no longer matters."""
        with self._lock:
            known = str(edition.directory), edition.name
            if known in self._watched and edition.is_open():
                self._watched[known].opened_ns = time.time_ns()
            else:
                self._watched.pop(known, None)

    def tag(self, directory: Path, edition: str, key: str) -> str | None:
        """Return the version that a ranged read of an object has to be of, if it was read before."""
        return self._of(directory, edition).tags.get(key)

    def check(self, directory: Path, item: Item, infos: Sequence[ObjectInfo], handle: StoreHandle) -> None:
        """Raise if the objects of a shard are not of its edition; what fitted its digest or version surely is."""
        if item.number is None:
            return
        watched, edition = self._of(directory, item.edition), _edition(directory, item.edition)
        version = fingerprint(info.version for info in infos)
        seen = edition.seen(item.number)
        if not all(part.stored.is_pinned for part in item.parts):
            if seen not in (0, version):
                raise self._changed(handle, infos[0].key, "it is not the object that was read before")
            for info in infos:
                self._check_time(watched, info, handle)
        if seen != version:
            edition.see(item.number, version)
        watched.tags.update((info.key, info.etag) for info in infos)

    def explain(self, directory: Path, edition: str, handle: StoreHandle, key: str) -> None:
        """Raise if the store has another index by now: then that is why a shard is missing, or another one."""
        self._check_index(self._of(directory, edition), handle, key)

    def _of(self, directory: Path, edition: str) -> _Watched:
        with self._lock:
            found = self._watched.get((str(directory), edition))
            if found is None:
                about, now_ns = _edition(directory, edition).about(), time.time_ns()
                modified_ns = None if about is None else about.modified_ns
                found = _Watched(about, now_ns, modified_ns)
                if modified_ns is not None:
                    found.asked_at = time.monotonic()
                    # A shard of the time of its index is one of its own, unless whole seconds may hide that it was
                    # written again just now.
                    found.mark_ns = modified_ns - is_young(ObjectInfo("", 0, None, modified_ns), now_ns)
                self._watched[str(directory), edition] = found
            return found

    def _check_time(self, watched: _Watched, info: ObjectInfo, handle: StoreHandle) -> None:
        modified_ns = info.modified_ns
        with watched.lock:
            is_due = watched.asked_at is None or time.monotonic() >= watched.asked_at + _ASK_AGAIN_S
            if modified_ns is None or watched.mark_ns is None:
                if is_due:
                    self._check_index(watched, handle, info.key)
                return
            if modified_ns <= watched.mark_ns:
                if is_due or is_near(handle):
                    self._check_not_put_back(watched, handle, info.key)
                return
            if modified_ns > watched.opened_ns + CLOCKS_DIFFER_NS:
                raise self._changed(handle, info.key, "it was written after this job opened the dataset")
            self._check_index(watched, handle, info.key)
            if not is_young(info, time.time_ns()):
                watched.mark_ns = modified_ns

    def _check_index(self, watched: _Watched, handle: StoreHandle, key: str) -> None:
        watched.asked_at = time.monotonic()
        if watched.about is None or watched.about.listing is not None:
            return
        try:
            info = handle.store.stat(INDEX_NAME)
        except ObjectNotFoundError as error:
            raise self._changed(handle, key, f"{INDEX_NAME} is gone") from error
        if not watched.about.is_version(info):
            raise self._changed(handle, key, f"{INDEX_NAME} was replaced")

    def _check_not_put_back(self, watched: _Watched, handle: StoreHandle, key: str) -> None:
        watched.asked_at = time.monotonic()
        with suppress(ObjectNotFoundError):  # it is being written again: shards will tell
            if watched.about is not None and watched.about.is_after(handle.store.stat(INDEX_NAME)):
                raise self._changed(handle, key, f"{INDEX_NAME} was replaced by an older one")

    def _changed(self, handle: StoreHandle, key: str, reason: str) -> ObjectChangedError:
        return ObjectChangedError(
            f"{handle.where(key)} was rewritten while this job was reading it ({reason}): a job reads the same"
            " version of its data from beginning to end. Restart the job to read the new version, or write new"
            " data to a new place",
            key=key,
        )
