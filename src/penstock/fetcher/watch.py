"""The edition of a dataset that a job reads, watched: how one notices that the data are written again.


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

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.cachedir.editions import About, Edition
from penstock.cachedir.versions import CLOCKS_DIFFER_NS, fingerprint, is_young, tag_of
from penstock.errors import ObjectChangedError, ObjectNotFoundError
from penstock.fetcher.origin import is_near
from penstock.index.catalog import INDEX_NAME
from penstock.storage.base import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.fetcher.origin import Origin
    from penstock.wire.item import Item

# A store that is far away is asked about its index no more often than this, if nothing else speaks for a change.
_ASK_AGAIN_S = 5.0


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
