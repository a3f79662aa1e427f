"""The edition of files that have no index: they are listed and, if anything is new, scanned; the result is kept.

The same listing (names, sizes, tags, times) needs no scan again. Of another one only those files are scanned that no
index knows in this version: neither an earlier one in the cache, nor the one that may lie beside the files.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from penstock.cachedir.editions import SOUGHT, About, Edition, editions_in
from penstock.cachedir.items import item_of_shard
from penstock.cachedir.layout import control_folder, new_part_path, stripe_of
from penstock.cachedir.versions import edition_of
from penstock.errors import DataError, EmptyDatasetError, PenstockError, StoreError
from penstock.fetcher.open_editions import digest_of
from penstock.fetcher.origin import is_near
from penstock.files import make_folders
from penstock.index.catalog import INDEX_NAME, MAX_INDEX_BYTES
from penstock.types import Span
from penstock.wire.item import Item, ItemPart, StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from penstock.cachedir.folder import Folder
    from penstock.cachedir.ledger import Record
    from penstock.fetcher.budget import DiskBudget, Reservation
    from penstock.fetcher.open_editions import EditionOpener
    from penstock.fetcher.origin import Origin
    from penstock.fetcher.queue import Transfer
    from penstock.index.files_loader import IndexedFile
    from penstock.scan.kept_bytes import KeptBytes, ScanKeeper
    from penstock.scan.make_index import Identity
    from penstock.storage.base import ObjectInfo
    from penstock.wire.settings import FilesRequest

_log = logging.getLogger("penstock.cache")

Keep: TypeAlias = "Callable[[ObjectInfo], ScanKeeper | None]"
Publish: TypeAlias = "Callable[[Item, KeptBytes], Record | None]"


def source_of(origin: Origin, files: FilesRequest) -> str:
    """Name what an edition was made for, without secrets."""
    return f"{origin.name}{SOUGHT}{files.digest}"


@dataclass(frozen=True, slots=True)
class MadeIndex:
    """An index that lies under a temporary name, or an edition that has the same."""

    source: str
    listing: str
    data: bytes


class FilesOpener:
    """Makes editions of files. Safe for threads."""

    def __init__(self, opener: EditionOpener) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self._locks: dict[Path, threading.Lock] = {}

    def _scanning(self, directory: Path) -> threading.Lock:
        """Give what one holds who scans for a directory: the next one may find what that one has made."""
        with self._lock:
            return self._locks.setdefault(directory, threading.Lock())

    def find(
        self, folder: Folder, origin: Origin, files: FilesRequest, transfer: Transfer, keep: Keep = lambda _: None
    ) -> MadeIndex:
        """List the files and give their index, from an earlier edition if nothing has changed.

        `keep` says who takes what is read of files in stores.
        """
        from penstock.scan.listing import Lister, find_in_repository, listing_digest  # with NumPy, seldom needed here

        if files.is_repository:
            objects = find_in_repository(origin.store, files.subset, files.split)
        else:
            objects = Lister(origin.store, origin.url).find(files.patterns, files.format)
        if not objects:
            raise EmptyDatasetError(f"found no files: {origin.where(files.patterns[0])}")
        transfer.check_wanted()
        listing = listing_digest(objects, files.question)
        source = source_of(origin, files)
        data = _same_listing(folder.directory, listing)
        if data is None:
            with self._scanning(folder.directory):
                data = _same_listing(folder.directory, listing)
                if data is None:
                    data = self._scan(folder, origin, files, transfer, objects, keep)
        return MadeIndex(source, listing, data)

    def open(self, folder: Folder, made: MadeIndex, evict: Callable[[str], bool]) -> Edition:
        """Give the edition of an index; of one directory, whoever calls holds the stripe of the index."""
        part = new_part_path(folder.directory, stripe_of(INDEX_NAME))
        make_folders(part.parent, 0o700)
        part.write_bytes(made.data)
        digest = digest_of(part)
        about = About(
            source=made.source,
            etag=None,
            modified_ns=None,
            index_digest=digest,
            trusts_found=False,
            listing=made.listing,
        )
        edition = Edition(folder.directory, edition_of(made.source, digest, None))
        if edition.exists() and edition.about() == about:
            part.replace(edition.index_path)
            edition.reopen()
            return edition
        edition.create(part, about)
        self._opener.remove_old(folder, edition, about, evict)
        return edition

    def _scan(
        self,
        folder: Folder,
        origin: Origin,
        files: FilesRequest,
        transfer: Transfer,
        objects: Sequence[ObjectInfo],
        keep: Keep,
    ) -> bytes:
        from penstock.scan.make_index import Scan

        known = _known_files(folder.directory, origin, files, objects)
        scan = Scan(
            store=origin.store,
            url=origin.url,
            format=files.format,
            settings=files.settings,
            on_begin=transfer.begin,
            on_bytes=transfer.add_bytes,
            check_wanted=transfer.check_wanted,
            keep=(lambda _: None) if is_near(origin) else keep,
        )
        return scan.make_index(objects, known)


# --- What was read goes to the cache ----------------------------------------------------------------------------


def keep_scanned(budget: DiskBudget, folder: Folder, publish: Publish, info: ObjectInfo) -> ScannedFile | None:
    """Take room for what a scan reads of a file; None: there is none without evicting anything."""
    file = StoredFile(info.key, info.key, info.num_bytes)
    reservation = budget.reserve_unused(folder.directory, Item((ItemPart(file),)))
    if reservation is None:
        return None
    try:
        return ScannedFile(budget, publish, reservation, info)
    except OSError as error:
        budget.settle(reservation, None)
        _log.info("%s is not kept while it is indexed: %s", info.key, error)
        return None


class ScannedFile:
    """What a scan reads of one file, until its shards have been published as downloads are.

    Nobody waits for them, so whatever speaks against it, such as a full disk, only ends the keeping.
    """

    def __init__(self, budget: DiskBudget, publish: Publish, reservation: Reservation, info: ObjectInfo) -> None:
        from penstock.scan.kept_bytes import KeptBytes  # as all of `scan`: most fetchers never need it

        control = control_folder(reservation.directory)
        make_folders(control, 0o700)
        self._budget, self._publish, self._reservation = budget, publish, reservation
        self._bytes = KeptBytes(info, control)
        self._is_kept = True

    def write(self, data: bytes, begin: int) -> None:
        """Take bytes, from any thread."""
        if self._is_kept:
            with self._giving_up():
                self._bytes.write(data, begin)

    def publish(self, file: IndexedFile) -> None:
        """Publish the shards, the last one first: the room of what is copied is given back at once."""
        from penstock.index.files_json import shards_of

        for shard in reversed(shards_of(file)):
            item = item_of_shard(shard, 0, "")._replace(number=None)  # of an edition that is not known yet
            span = shard.parts[0].span
            if span is None or not self._is_kept:
                continue
            if self._bytes.holds(Span(span.offset, span.offset + span.num_bytes)):
                with self._giving_up():
                    self._publish_shard(item)
                    self._bytes.cut(span.offset)

    def _publish_shard(self, item: Item) -> None:
        """Publish a shard. As it is stored it takes the room that the file has; what is unpacked takes more."""
        room: Reservation | None
        if item.compression is None:
            room = replace(self._reservation, name=item.name, num_bytes=item.raw_bytes)
            self._reservation = replace(self._reservation, num_bytes=self._reservation.num_bytes - item.raw_bytes)
        else:
            room = self._budget.reserve_unused(self._reservation.directory, item)
        if room is None:
            return
        record = None
        try:
            record = self._publish(item, self._bytes)
        finally:
            self._budget.settle(room, record)

    def close(self) -> None:
        """Give back what room is left."""
        self._bytes.close()
        self._budget.settle(self._reservation, None)

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except (OSError, PenstockError) as error:
            self._is_kept = False
            _log.info("%s is no longer kept while it is indexed: %s", self._bytes.info.key, error)


# --- Earlier indexes ------------------------------------------------------------------------------------------


def _same_listing(directory: Path, listing: str) -> bytes | None:
    """Give the index that was made of the same listing, maybe for other columns, if it is whole."""
    for found, index in _made_indexes(directory):
        if found == listing:
            return index.read_bytes()
    return None


def _made_indexes(directory: Path) -> Iterator[tuple[str, Path]]:
    """Give the indexes of files that were made before and are whole, each with the listing that it was made of."""
    for edition in editions_in(directory):
        about = edition.about()
        if about is None or about.listing is None or not edition.exists():
            continue
        if digest_of(edition.index_path) == about.index_digest:
            yield about.listing, edition.index_path


def _known_files(
    directory: Path, origin: Origin, files: FilesRequest, objects: Sequence[ObjectInfo]
) -> dict[Identity, IndexedFile]:
    """Give the files whose shards are known already: from the index beside them, and from earlier editions."""
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
    if len(known) < len(objects) and (data := _stored_index(origin)) is not None:
        add(data, origin.where(STORED_NAME))
    return known


def _stored_index(origin: Origin) -> bytes | None:
    """Read the index that somebody left beside the files, if there is one."""
    from penstock.index.files_json import STORED_NAME

    if origin.has_queries:
        return None
    try:
        if origin.store.stat(STORED_NAME).num_bytes > MAX_INDEX_BYTES:
            return None
        return bytes(origin.store.read(STORED_NAME))
    except StoreError:
        return None
