"""The index of a stream: fetched, or made of files that have none; and the edition that a job reads from then on.

Files that have no index are listed and, if anything is new, scanned. The same listing (names, sizes, tags, times) needs
no scan again. Of another one only those files are scanned that no index knows in this version: neither an earlier one
in the cache, nor the one that may lie beside the files.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

from penstock.cachedir.editions import SOUGHT, About, Edition, editions_in, last_edition
from penstock.cachedir.layout import new_part_path, stripe_of
from penstock.cachedir.ledger import Record
from penstock.cachedir.presence import look, stamp_of
from penstock.cachedir.versions import edition_of, is_young, lasting_tag
from penstock.errors import (
    AccessDeniedError,
    BadIndexError,
    DataError,
    EmptyDatasetError,
    ObjectChangedError,
    ObjectNotFoundError,
    RequestRefusedError,
    StoreError,
)
from penstock.fetcher.copies import digest_of
from penstock.fetcher.pieces import is_near
from penstock.fetcher.transfer import Download, again_if_deleted, holding, learn_size
from penstock.files import copy_file, make_folders
from penstock.index.catalog import MAX_INDEX_BYTES
from penstock.index.paths import INDEX_NAME
from penstock.units import format_bytes
from penstock.wire.messages import Fetched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from penstock.cachedir.folder import Folder
    from penstock.fetcher.pieces import StoreHandle
    from penstock.fetcher.transfer import Steps, Tools, Transfer
    from penstock.index.files_json import IndexedFile
    from penstock.scan.make_index import Identity, ScanKeeper
    from penstock.storage.base import ObjectInfo
    from penstock.wire.settings import FilesRequest

_log = logging.getLogger("penstock.cache")


class IndexOpener:
    """Opens the indexes of streams. Safe for threads."""

    def __init__(self, tools: Tools, keep_scan: Callable[[Tools, Transfer, ObjectInfo], ScanKeeper | None]) -> None:
        self._tools, self._keep_scan = tools, keep_scan
        self._lock = threading.Lock()
        self._unproven: dict[str, str] = {}  # editions of indexes whose time proves nothing yet
        self._scanning: dict[Path, threading.Lock] = {}  # held by the one who scans for a directory

    def open(self, job: Transfer) -> Steps:
        """Fetch or make the index and open its edition; the one that was opened last serves if the store is away."""
        yield  # it takes no room
        return again_if_deleted(job, lambda: self._open(job))

    def _open(self, job: Transfer) -> Fetched:
        files = job.stream.files
        if files is None or not files.may_have_index:
            return self._open_from(job, files)
        try:
            return self._open_from(job, None)
        except ObjectNotFoundError as error:
            with suppress(ObjectNotFoundError, RequestRefusedError, AccessDeniedError):
                return self._open_from(job, files)
            raise error from None  # there are no other files either, or they may not be seen

    def _open_from(self, job: Transfer, files: FilesRequest | None) -> Fetched:
        job.check_wanted()
        handle = self._tools.handles.of(job.stream)
        try:
            edition = self._fetch(job, handle) if files is None else self._make(job, handle, files)
        except (ObjectNotFoundError, AccessDeniedError):
            raise
        except StoreError as error:
            is_final = files is not None and isinstance(error, ObjectChangedError | RequestRefusedError)
            last = None if is_final else self._last(job, handle, files)
            if last is None:
                raise
            last.reopen()
            return Fetched(edition=last.name, away=str(error))
        self._tools.watch.begin(edition)
        self._tools.copies.begin(edition)
        self._tools.rooms.note_index(job.directory)
        if handle.has_ranges:
            return Fetched(edition=edition.name, revision=handle.revision())
        text = (
            f"{handle.where('')}: this server does not support range requests, so penstock downloads whole shards even"
            " for a few samples: use a server that supports them, such as nginx, or an object store"
        )
        return Fetched(edition=edition.name, revision=handle.revision(), has_ranges=False, warnings=(text,))

    def _last(self, job: Transfer, handle: StoreHandle, files: FilesRequest | None) -> Edition | None:
        """Return the edition that was opened last, or one of the index that others laid there."""
        edition = last_edition(job.directory, _source_of(handle, files), digest_of)
        if edition is not None or files is not None or look(job.directory, INDEX_NAME) is None:
            return edition
        with holding(self._tools, job, INDEX_NAME):
            part = _new_part(job.directory)
            copy_file(job.directory / INDEX_NAME, part)
            return self._edition_of(job, handle, part, None)

    # --- An index that the store has ------------------------------------------------------------------------

    def _fetch(self, job: Transfer, handle: StoreHandle) -> Edition:
        tools = self._tools
        beginning = learn_size(tools, job)
        num_bytes = job.raw_bytes
        if num_bytes > MAX_INDEX_BYTES:
            raise BadIndexError(
                f"{handle.where(INDEX_NAME)} has {format_bytes(num_bytes)}, and penstock reads indexes of at"
                f" most {format_bytes(MAX_INDEX_BYTES)}: merge small shards into larger ones",
                num_bytes=num_bytes,
            )
        job.begin(num_bytes)
        download = Download(tools, job, beginning)
        # Others open the same index meanwhile, so its name is free; but unfinished files must not be cleared.
        held = tools.stripes.try_take_any(job.directory, job.name)
        name = job.name if held is None else held.name
        with held or nullcontext(), download.fetched_index(name) as (path, info):
            tools.counts.add_download(job.queued.demand.cause, info.num_bytes, job.key)
            with holding(tools, job, job.name):
                return self._edition_of(job, handle, path, info)

    # --- An index that is made ------------------------------------------------------------------------------

    def _make(self, job: Transfer, handle: StoreHandle, files: FilesRequest) -> Edition:
        """List the files and make their index, unless an earlier edition has it since nothing has changed."""
        from penstock.scan.hub import find_in_repository  # with NumPy, seldom needed here
        from penstock.scan.listing import Lister, listing_digest

        if files.is_repository:
            objects = find_in_repository(handle.store, files.subset, files.split)
        else:
            objects = Lister(handle.store, handle.url).find(files.patterns, files.format)
        if not objects:
            raise EmptyDatasetError(f"found no files: {handle.where(files.patterns[0])}")
        job.check_wanted()
        listing = listing_digest(objects, files.question)
        data = _same_listing(job.directory, listing)
        if data is None:
            with self._lock:
                scanning = self._scanning.setdefault(job.directory, threading.Lock())
            with scanning:  # the next one may find what the one before has made
                data = _same_listing(job.directory, listing) or self._scan(job, handle, files, objects)
        with holding(self._tools, job, INDEX_NAME):
            part = _new_part(job.directory)
            part.write_bytes(data)
            return self._edition_of(job, handle, part, None, files, listing)

    def _scan(self, job: Transfer, handle: StoreHandle, files: FilesRequest, objects: Sequence[ObjectInfo]) -> bytes:
        from penstock.scan.make_index import Scan

        known = _known_files(job.directory, handle, files, objects)
        scan = Scan(
            store=handle.store,
            url=handle.url,
            format=files.format,
            settings=files.settings,
            watcher=job,
            keep=(lambda _: None) if is_near(handle) else partial(self._keep_scan, self._tools, job),
        )
        return scan.make_index(objects, known)

    # --- Its edition (with the stripe of the index held) ----------------------------------------------------

    def _edition_of(
        self,
        job: Transfer,
        handle: StoreHandle,
        index: Path,
        info: ObjectInfo | None,
        files: FilesRequest | None = None,
        listing: str | None = None,
    ) -> Edition:
        """Return the edition of an index that has just come or was made; `index` is a file of ours, and moved away."""
        folder, source = self._tools.rooms.folders[job.key[0]], _source_of(handle, files)
        index_digest = digest_of(index)
        edition = Edition(job.directory, self._name(job.directory, source, index_digest, info))
        known = edition.about() if edition.exists() else None
        if known is not None and known.listing == listing:
            index.replace(edition.index_path)  # the same bytes, and surely whole
            edition.reopen()
            return edition
        about = About(
            source=source,
            etag=None if info is None else info.etag,
            modified_ns=None if info is None else info.modified_ns,
            index_digest=index_digest,
            trusts_found=listing is None and _is_beside_files(job.directory, index_digest, info),
            listing=listing,
        )
        edition.create(index, about)
        if listing is None:
            _publish_index(folder, edition, handle, info)
        self._remove_old(folder, edition, about)
        return edition

    def _name(self, directory: Path, source: str, index_digest: str, info: ObjectInfo | None) -> str:
        """Name the edition. An index whose time proves nothing yet is another one each time, unless it is open now."""
        name = edition_of(source, index_digest, info)
        if info is None or not is_young(info, time.time_ns()):
            return name
        with self._lock:
            known = f"{directory} {name}"
            if known not in self._unproven or not Edition(directory, self._unproven[known]).is_open():
                self._unproven[known] = edition_of(source, index_digest, info, os.urandom(8).hex())
            return self._unproven[known]

    def _remove_old(self, folder: Folder, current: Edition, about: About) -> None:
        """Remove earlier editions of the same place that are not read, and the copies that only they had."""
        for edition in editions_in(folder.directory):
            if edition.name == current.name or edition.is_open():
                continue
            old = edition.about()
            if old is not None and old.source != about.source:
                continue
            prefix = os.path.relpath(edition.folder, folder.directory) + "/"
            apart = [record.name for record in folder.ledger.all() if record.name.startswith(prefix)]
            in_use = [name for name in apart if not self._tools.rooms.evict(folder.directory, name)]
            if not in_use:
                edition.remove_unused()


def _source_of(handle: StoreHandle, files: FilesRequest | None) -> str:
    """Name what an edition was made for, without secrets."""
    return handle.name if files is None else f"{handle.name}{SOUGHT}{files.digest}"


def _new_part(directory: Path) -> Path:
    part = new_part_path(directory, stripe_of(INDEX_NAME))
    make_folders(part.parent, 0o700)
    return part


def _is_beside_files(directory: Path, index_digest: str, info: ObjectInfo | None) -> bool:
    """Return True if the directory already had this very index: then files beside it are of it, too.

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


def _publish_index(folder: Folder, edition: Edition, handle: StoreHandle, info: ObjectInfo | None) -> None:
    """Lay the index beside the files, for other readers of the directory, unless one of others lies there."""
    directory = folder.directory
    record = folder.ledger.get(INDEX_NAME)
    stamp = look(directory, INDEX_NAME)
    if os.path.lexists(directory / INDEX_NAME) and (record is None or stamp is None or record.files != (stamp,)):
        return
    part = new_part_path(directory, stripe_of(INDEX_NAME))
    try:
        copy_file(edition.index_path, part)
        if not directory.stat().st_mode & 0o077:
            part.chmod(0o600)  # this folder is for its owner alone
        status = part.stat()
        record = Record(
            files=(stamp_of(INDEX_NAME, status),),
            url=handle.name,
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


# --- Earlier indexes ------------------------------------------------------------------------------------------


def _same_listing(directory: Path, listing: str) -> bytes | None:
    """Return the index that was made of the same listing, maybe for other columns, if it is whole."""
    for found, index in _made_indexes(directory):
        if found == listing:
            return index.read_bytes()
    return None


def _made_indexes(directory: Path) -> Iterator[tuple[str, Path]]:
    """Return the indexes of files that were made before and are whole, each with the listing that it was made of."""
    for edition in editions_in(directory):
        about = edition.about()
        if about is None or about.listing is None or not edition.exists():
            continue
        if digest_of(edition.index_path) == about.index_digest:
            yield about.listing, edition.index_path


def _known_files(
    directory: Path, handle: StoreHandle, files: FilesRequest, objects: Sequence[ObjectInfo]
) -> dict[Identity, IndexedFile]:
    """Return the files whose shards are known already: from the index beside them, and from earlier editions."""
    from penstock.index.files_json import STORED_NAME
    from penstock.scan.make_index import files_that_fit

    known: dict[Identity, IndexedFile] = {}

    def add(data: bytes, where: str) -> None:
        try:
            known.update(files_that_fit(data, where, objects, files.settings) | known)
        except (DataError, ValueError, RecursionError) as error:
            _log.warning("%s is not used: %s", where, error)

    for _, index in _made_indexes(directory):
        add(index.read_bytes(), f"an earlier index in {directory}")
    if len(known) < len(objects) and (data := _stored_index(handle)) is not None:
        add(data, handle.where(STORED_NAME))
    return known


def _stored_index(handle: StoreHandle) -> bytes | None:
    """Read the index that was left beside the files, if there is one."""
    from penstock.index.files_json import STORED_NAME

    if handle.has_queries:
        return None
    try:
        if handle.store.stat(STORED_NAME).num_bytes > MAX_INDEX_BYTES:
            return None
        return bytes(handle.store.read(STORED_NAME))
    except StoreError:
        return None
