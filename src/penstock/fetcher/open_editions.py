"""The edition of a dataset that a job reads: how it is opened, and how one notices that the data are written again.

A job reads one edition from beginning to end. Where the index has digests, they say what a shard must be. Where it has
none:

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
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.cachedir.editions import About, Edition, editions_in
from penstock.cachedir.layout import new_part_path, stripe_of
from penstock.cachedir.ledger import Record
from penstock.cachedir.presence import is_name_taken, look, stamp_of
from penstock.cachedir.versions import CLOCKS_DIFFER_NS, edition_of, fingerprint, is_young, lasting_tag, tag_of
from penstock.codecs.digest import digest
from penstock.codecs.unpack import map_file, release
from penstock.errors import ObjectChangedError, ObjectNotFoundError
from penstock.fetcher.origin import is_near
from penstock.files import copy_file
from penstock.index.catalog import INDEX_NAME
from penstock.quick_dataclass import dataclass, field
from penstock.storage.base import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.cachedir.folder import Folder
    from penstock.fetcher.origin import Origin
    from penstock.wire.item import Item

# A store that is far away is asked about its index no more often than this, if nothing else speaks for a change.
_ASK_AGAIN_S = 5.0


# --- Opening ------------------------------------------------------------------------------------------------


class EditionOpener:
    """Makes editions of indexes. Safe for threads; of one directory, whoever calls holds the stripe of the index."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unproven: dict[str, str] = {}

    def open(
        self, folder: Folder, origin: Origin, index: Path, info: ObjectInfo | None, evict: Callable[[str], bool]
    ) -> Edition:
        """Give the edition of an index that has just come; `index` is a file of ours, and is moved away."""
        index_digest = digest_of(index)
        edition = self._edition(folder.directory, origin.name, index_digest, info)
        if edition.exists():
            index.replace(edition.index_path)  # the same bytes, and surely whole
            edition.reopen()
            return edition
        about = About(
            source=origin.name,
            etag=None if info is None else info.etag,
            modified_ns=None if info is None else info.modified_ns,
            index_digest=index_digest,
            trusts_found=_is_beside_files(folder.directory, index_digest, info),
        )
        edition.create(index, about)
        _publish_index(folder, edition, origin, info)
        self.remove_old(folder, edition, about, evict)
        return edition

    def _edition(self, directory: Path, source: str, index_digest: str, info: ObjectInfo | None) -> Edition:
        """Name the edition. An index whose time proves nothing yet is another one each time, unless it is open now."""
        name = edition_of(source, index_digest, info)
        if info is None or not is_young(info, time.time_ns()):
            return Edition(directory, name)
        with self._lock:
            known = f"{directory} {name}"
            if known in self._unproven and Edition(directory, self._unproven[known]).is_open():
                return Edition(directory, self._unproven[known])
            self._unproven[known] = edition_of(source, index_digest, info, os.urandom(8).hex())
            return Edition(directory, self._unproven[known])

    def remove_old(self, folder: Folder, current: Edition, about: About, evict: Callable[[str], bool]) -> None:
        """Remove earlier editions of the same place that nobody reads, and the copies that only they had."""
        for edition in editions_in(folder.directory):
            if edition.name == current.name or edition.is_open():
                continue
            old = edition.about()
            if old is not None and old.source != about.source:
                continue
            prefix = os.path.relpath(edition.folder, folder.directory) + "/"
            apart = [record.name for record in folder.ledger.all() if record.name.startswith(prefix)]
            in_use = [name for name in apart if not evict(name)]
            if not in_use:
                edition.remove_unused()


def digest_of(path: Path, name: str = "sha256") -> str:
    """Digest a file; of an index, this is what names its edition."""
    data = map_file(path)
    try:
        return digest([data], [name])[name]
    finally:
        release(data)


def _is_beside_files(directory: Path, index_digest: str, info: ObjectInfo | None) -> bool:
    """Tell whether the directory already had this very index: then files beside it are of it, too.

    A copy of the index that is older than the store's own, though it has the same bytes, is of earlier data.
    """
    stamp = look(directory, INDEX_NAME)
    if stamp is None:
        return False
    if info is not None and info.modified_ns is not None:
        grain_ns = 1 if info.modified_ns % 10**9 else 10**9  # many stores count whole seconds
        if stamp.mtime_ns // grain_ns < info.modified_ns // grain_ns:
            return False
    return digest_of(directory / INDEX_NAME) == index_digest


def _publish_index(folder: Folder, edition: Edition, origin: Origin, info: ObjectInfo | None) -> None:
    """Lay the index beside the files, for other readers of the directory, unless somebody else's lies there."""
    directory = folder.directory
    record = folder.ledger.get(INDEX_NAME)
    stamp = look(directory, INDEX_NAME)
    if is_name_taken(directory, INDEX_NAME) and (record is None or stamp is None or record.files != (stamp,)):
        return
    part = new_part_path(directory, stripe_of(INDEX_NAME))
    try:
        copy_file(edition.index_path, part)
        if not directory.stat().st_mode & 0o077:
            part.chmod(0o600)  # nobody else may look into this folder
        status = part.stat()
        record = Record(
            files=(stamp_of(INDEX_NAME, status),),
            url=origin.name,
            keys=(INDEX_NAME,),
            stored_bytes=(status.st_size,),
            versions=(None if info is None else lasting_tag(info, time.time_ns()),),
            digests=(None,),
            edition=edition.name,
            boot=None,
        )
        folder.ledger.put(record)
        part.replace(directory / INDEX_NAME)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


# --- Watching -----------------------------------------------------------------------------------------------


@dataclass
class _Watched:
    """What is known of one edition while somebody reads it."""

    about: About | None
    opened_ns: int
    mark_ns: int | None  # shards up to this time were there when the index was last seen unchanged
    asked_at: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    tags: dict[str, str | None] = field(default_factory=dict)  # of objects that were read by ranges, by key


def first_mark(index_ns: int, now_ns: int) -> int:
    """Give up to which time a shard is surely older than the index, which was written at `index_ns`.

    A shard of the same time is one of its own, unless whole seconds may hide that it was written again just now.
    """
    return index_ns - 1 if is_young(ObjectInfo("", 0, None, index_ns), now_ns) else index_ns


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
        """Give the version that a ranged read of an object has to be of, if it was read before."""
        return self._of(directory, edition).tags.get(key)

    def check(self, directory: Path, item: Item, infos: Sequence[ObjectInfo], origin: Origin) -> None:
        """Raise if the objects of a shard are not of its edition; what fitted its digest or version surely is."""
        if item.number is None:
            return
        watched, edition = self._of(directory, item.edition), Edition(directory, item.edition)
        version = fingerprint(map(tag_of, infos))
        seen = edition.seen(item.number)
        if not all(part.stored.is_pinned for part in item.parts):
            if seen not in (0, version):
                raise self._changed(origin, infos[0].key, "it is not the object that was read before")
            for info in infos:
                self._check_time(watched, info, origin)
        if seen != version:
            edition.see(item.number, version)
        watched.tags.update((info.key, info.etag) for info in infos)

    def explain(self, directory: Path, edition: str, origin: Origin, key: str) -> None:
        """Raise if the store has another index by now: then that is why a shard is missing, or another one."""
        self._check_index(self._of(directory, edition), origin, key)

    def _of(self, directory: Path, edition: str) -> _Watched:
        with self._lock:
            found = self._watched.get((str(directory), edition))
            if found is None:
                about, now_ns = Edition(directory, edition).about(), time.time_ns()
                modified_ns = None if about is None else about.modified_ns
                found = _Watched(about, now_ns, None if modified_ns is None else first_mark(modified_ns, now_ns))
                found.asked_at = None if modified_ns is None else time.monotonic()
                self._watched[str(directory), edition] = found
            return found

    def _check_time(self, watched: _Watched, info: ObjectInfo, origin: Origin) -> None:
        modified_ns = info.modified_ns
        with watched.lock:
            is_due = watched.asked_at is None or time.monotonic() >= watched.asked_at + _ASK_AGAIN_S
            if modified_ns is None or watched.mark_ns is None:
                if is_due:
                    self._check_index(watched, origin, info.key)
                return
            if modified_ns <= watched.mark_ns:
                if is_due or is_near(origin):
                    self._check_not_put_back(watched, origin, info.key)
                return
            if modified_ns > watched.opened_ns + CLOCKS_DIFFER_NS:
                raise self._changed(origin, info.key, "it was written after this job opened the dataset")
            self._check_index(watched, origin, info.key)
            if not is_young(info, time.time_ns()):
                watched.mark_ns = modified_ns

    def _check_index(self, watched: _Watched, origin: Origin, key: str) -> None:
        watched.asked_at = time.monotonic()
        if watched.about is None or watched.about.listing is not None:
            return
        try:
            info = origin.store.stat(INDEX_NAME)
        except ObjectNotFoundError as error:
            raise self._changed(origin, key, f"{INDEX_NAME} is gone") from error
        if not watched.about.is_version(info):
            raise self._changed(origin, key, f"{INDEX_NAME} was replaced")

    def _check_not_put_back(self, watched: _Watched, origin: Origin, key: str) -> None:
        watched.asked_at = time.monotonic()
        with suppress(ObjectNotFoundError):  # it is being written again: shards will tell
            if watched.about is not None and watched.about.is_after(origin.store.stat(INDEX_NAME)):
                raise self._changed(origin, key, f"{INDEX_NAME} was replaced by an older one")

    def _changed(self, origin: Origin, key: str, reason: str) -> ObjectChangedError:
        return ObjectChangedError(
            f"{origin.where(key)} was rewritten while this job was reading it ({reason}): a job reads the same"
            " version of its data from beginning to end. Restart the job to read the new version, or write new"
            " data to a new place",
            key=key,
        )
