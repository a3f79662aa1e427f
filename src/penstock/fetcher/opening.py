"""From the index that a store has now to the edition that a job reads."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.cachedir.editions import About, Edition, editions_in
from penstock.cachedir.layout import new_part_path, stripe_of
from penstock.cachedir.ledger import Record
from penstock.cachedir.presence import look, stamp_of
from penstock.cachedir.versions import edition_of, is_young, lasting_tag
from penstock.codecs.digest import digest
from penstock.codecs.unpack import map_file, release
from penstock.files import copy_file
from penstock.index.catalog import INDEX_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.cachedir.folder import Folder
    from penstock.fetcher.source import Source
    from penstock.storage.base import ObjectInfo


class Openings:
    """Makes editions of indexes. Safe for threads; of one directory, whoever calls holds the stripe of the index."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unproven: dict[str, str] = {}

    def open(
        self, folder: Folder, source: Source, index: Path, info: ObjectInfo | None, evict: Callable[[str], bool]
    ) -> Edition:
        """Give the edition of an index that has just come; `index` is a file of ours, and is moved away."""
        index_digest = digest_of(index)
        edition = self._edition(folder.directory, source.name, index_digest, info)
        if edition.exists():
            index.replace(edition.index_path)  # the same bytes, and surely whole
            edition.reopen()
            return edition
        about = About(
            source=source.name,
            etag=None if info is None else info.etag,
            modified_ns=None if info is None else info.modified_ns,
            index_digest=index_digest,
            trusts_found=_is_beside_files(folder.directory, index_digest, info),
        )
        edition.create(index, about)
        _publish_index(folder, edition, source, info)
        self._remove_old(folder, edition, about, evict)
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

    def _remove_old(self, folder: Folder, current: Edition, about: About, evict: Callable[[str], bool]) -> None:
        """Remove earlier editions of the same place that nobody reads, and the copies that only they had."""
        for edition in editions_in(folder.directory):
            if edition.name == current.name or edition.is_open():
                continue
            old = edition.about()
            if old is not None and old.source != about.source:
                continue
            in_use = [record for record in _apart_records(folder, edition) if not evict(record.name)]
            if not in_use:
                edition.remove_unused()


def _apart_records(folder: Folder, edition: Edition) -> list[Record]:
    prefix = os.path.relpath(edition.folder, folder.directory) + "/"
    return [record for record in folder.ledger.all() if record.name.startswith(prefix)]


def digest_of(path: Path) -> str:
    """Digest an index, wherever it lies."""
    data = map_file(path)
    try:
        return digest([data], ["sha256"])["sha256"]
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


def _publish_index(folder: Folder, edition: Edition, source: Source, info: ObjectInfo | None) -> None:
    """Lay the index beside the files, for other readers of the directory, unless somebody else's lies there."""
    directory = folder.directory
    record = folder.ledger.get(INDEX_NAME)
    stamp = look(directory, INDEX_NAME)
    if os.path.lexists(directory / INDEX_NAME) and (record is None or stamp is None or record.files != (stamp,)):
        return
    part = new_part_path(directory, stripe_of(INDEX_NAME))
    try:
        copy_file(edition.index_path, part)
        if not directory.stat().st_mode & 0o077:
            part.chmod(0o600)  # nobody else may look into this folder
        status = part.stat()
        record = Record(
            files=(stamp_of(INDEX_NAME, status),),
            url=source.name,
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
