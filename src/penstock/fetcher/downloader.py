"""From the wish to the file: room, lock, download. Runs in the scheduler's threads."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import CancelledError
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.cachedir.editions import Edition, last_edition
from penstock.cachedir.layout import new_part_path, stripe_of
from penstock.cachedir.presence import is_name_taken, look
from penstock.errors import (
    AccessDeniedError,
    BadIndexError,
    ObjectChangedError,
    ObjectNotFoundError,
    PenstockError,
    RequestRefusedError,
    StoreError,
)
from penstock.fetcher.copies import Copies, Copy
from penstock.fetcher.disk import Flusher
from penstock.fetcher.download import Beginning, Download
from penstock.fetcher.open_editions import EditionOpener, EditionWatch, digest_of
from penstock.fetcher.open_files import FilesOpener, keep_scanned, source_of
from penstock.fetcher.unpacking import FormatUnpacker
from penstock.files import copy_file, make_folders, translated
from penstock.index.catalog import INDEX_NAME, MAX_INDEX_BYTES
from penstock.units import format_bytes
from penstock.wire.ahead import FIRST_BYTES
from penstock.wire.messages import Fetched

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.cachedir.folder import Folder
    from penstock.cachedir.ledger import Record
    from penstock.cachedir.lock import Held, Stripes
    from penstock.fetcher.budget import DiskBudget, Reservation
    from penstock.fetcher.counts import FetcherCounts
    from penstock.fetcher.origin import Origin, Origins
    from penstock.fetcher.pieces import PiecePool
    from penstock.fetcher.queue import Transfer
    from penstock.scan.kept_bytes import KeptBytes
    from penstock.storage.base import ObjectInfo
    from penstock.wire.ahead import IndexesAhead
    from penstock.wire.item import Item
    from penstock.wire.settings import FilesRequest

_log = logging.getLogger("penstock.cache")
_PATIENCE = 10  # with another process that brings the same, as a multiple of that with the store
_DELETED_TRIES = 5  # how often a directory may be deleted under one download


class NoLongerWanted(Exception):  # noqa: N818  no error: whoever wanted it has left
    """A transfer was given up."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A transfer may go on: its item is there already, or has its room, or it is not yet known what room it needs."""

    reservation: Reservation | None = None
    copy: Copy | None = None


class Downloader:
    """Brings items with the means that all transfers share. Safe for threads."""

    def __init__(
        self,
        *,
        stripes: Stripes,
        budget: DiskBudget,
        pool: PiecePool,
        counts: FetcherCounts,
        origins: Origins,
        ahead: IndexesAhead | None = None,
    ) -> None:
        self.watch = EditionWatch()
        self._stripes = stripes
        self._budget = budget
        self._pool = pool
        self._counts = counts
        self._origins = origins
        self._ahead = ahead
        self._unpacking = threading.Semaphore(max(2, os.cpu_count() or 2))
        self._copies = Copies(self._unpacking)
        self._opener = EditionOpener()
        self._files = FilesOpener(self._opener)
        self._unpacker = FormatUnpacker(self._unpacking)
        self._flusher = Flusher()

    def close(self) -> None:
        """End what runs beside the transfers."""
        self._flusher.close()

    def admit(self, transfer: Transfer) -> Admission | None:
        """Make room for an item without waiting for anybody; None: there is none now.

        Of those that compete for room one is admitted after the other, so that what is needed later never takes the
        room of what is needed sooner.
        """
        item = transfer.item
        if transfer.is_cancelled:
            raise NoLongerWanted
        if item.is_index:
            return Admission()
        copy = self._copies.known(self._budget.folder(transfer.directory), item)
        if copy is not None:
            self._found(transfer, copy)
            return Admission(copy=copy)
        if item.parts[0].stored.num_bytes is None or is_name_taken(transfer.directory, item.name):
            return Admission()
        reservation = self._reserve(transfer, self._unpacker.resolve(transfer.directory, item))
        return None if reservation is None else Admission(reservation)

    def fetch(self, transfer: Transfer, admission: Admission) -> Fetched | None:
        """Bring an item that was admitted; None: only now it is known what room it needs, and there is none."""
        item, beginning = transfer.item, None
        if item.is_index:
            return self._again(transfer, lambda: self._open_index(transfer))
        if admission.copy is not None:
            return Fetched(admission.copy.name)
        if item.parts[0].stored.num_bytes is None:
            item, beginning = self._sized(transfer)
        item = self._unpacker.resolve(transfer.directory, item)
        transfer.reservation = admission.reservation
        try:
            return self._again(transfer, lambda: self._fetch_held(transfer, item, beginning))
        finally:
            if transfer.reservation is not None:
                hand_over = transfer.demand().is_requested
                self._budget.settle(transfer.reservation, transfer.arrived, hand_over=hand_over)

    def _reserve(self, transfer: Transfer, item: Item) -> Reservation | None:
        demand = transfer.demand()
        return self._budget.reserve(
            transfer.directory,
            item,
            keep_zip=transfer.stream.keep_zip,
            is_urgent=demand.is_urgent,
            insists=demand.insists,
        )

    def _found(self, transfer: Transfer, copy: Copy) -> None:
        hand_over = transfer.demand().is_requested
        self._budget.found(transfer.directory, copy.name, copy.record, hand_over=hand_over)

    def _again(self, transfer: Transfer, bring: Callable[[], Fetched | None]) -> Fetched | None:
        """Try again if the directory is deleted meanwhile."""
        for _ in range(_DELETED_TRIES - 1):
            try:
                return bring()
            except FileNotFoundError as error:
                below = f"{transfer.directory}{os.sep}"
                if isinstance(error, PenstockError) and not str(error.facts.get("path", "")).startswith(below):
                    raise  # it is an object of the store that is missing, not one of our own files
                _log.info(
                    "%s was deleted while %s was being fetched, trying again", transfer.directory, transfer.item.name
                )
        with translated(transfer.directory):
            return bring()

    def _holding(self, transfer: Transfer, name: str) -> Held:
        # Whoever has the name may be bringing it over a slow network, and gives up by himself.
        timeout_s = _PATIENCE * transfer.stream.timeout_s
        return self._stripes.take(transfer.directory, name, timeout_s, should_stop=lambda: transfer.is_cancelled)

    def _fetch_held(self, transfer: Transfer, item: Item, beginning: Beginning | None) -> Fetched | None:
        """Download unless the right copy is there, maybe brought by another fetcher."""
        folder, origin = self._budget.folder(transfer.directory), self._origins.of(transfer.stream)
        with self._holding(transfer, item.name):
            evict = partial(self._budget.evict, transfer.directory, is_held=True)
            copy = self._copies.find(folder, item, origin, evict)
            if copy.is_right:
                self._found(transfer, copy)
                return Fetched(copy.name)
            if transfer.reservation is None:
                transfer.reservation = self._reserve(transfer, item)
            if transfer.reservation is None:
                return None
            cause = transfer.demand().cause
            transfer.begin(item.packed_bytes or item.raw_bytes)
            try:
                record = self._download(transfer, item, beginning, copy).run()
            except CancelledError as error:
                raise NoLongerWanted from error
            transfer.arrived = record
            num_bytes = item.packed_bytes or item.raw_bytes
            # Before readers find it: who counts afterwards misses none.
            can_evict = self._budget.may_evict(transfer.directory)
            self._counts.add_download(cause, num_bytes, (transfer.directory, item.identity), can_evict=can_evict)
            if item.number is not None:
                edition = Edition(transfer.directory, item.edition)
                files = record.files[: len(item.parts)]
                edition.confirm(item.number, files, is_apart=copy.name != item.name)
                if item.validates:
                    edition.note_checked(item.number, edition.entry(item.number))
        if record.boot is not None:
            self._flusher.add(transfer.directory, record, folder.ledger)
        return Fetched(copy.name, num_bytes)

    def _download(self, transfer: Transfer, item: Item, beginning: Beginning | None, copy: Copy) -> Download:
        folder, origin = self._budget.folder(transfer.directory), self._origins.of(transfer.stream)
        return Download(
            item=item,
            directory=transfer.directory,
            origin=origin,
            keep_zip=transfer.stream.keep_zip,
            pool=self._pool,
            owner=transfer,
            unpacking=self._unpacking,
            on_bytes=transfer.add_bytes,
            check_wanted=transfer.check_wanted,
            on_retry=lambda: self._counts.add("retries"),
            beginning=beginning,
            ledger=folder.ledger,
            name_of=partial(copy.path_of, item),
            kept=partial(self._copies.kept, folder, item),
            check=lambda infos: self.watch.check(transfer.directory, item, infos, origin),
            explain=lambda key: self.watch.explain(transfer.directory, item.edition, origin, key),
            file_mode=0o600 if transfer.stream.is_private else 0o666,
            unpacks=self._unpacker.of(transfer.directory, item),
        )

    # --- The index ------------------------------------------------------------------------------------------

    def _open_index(self, transfer: Transfer) -> Fetched:
        """Fetch or make the index and open its edition; the one that was opened last serves if the store is away."""
        files = transfer.stream.files
        if files is None:
            return self._open_fetched(transfer)
        if not files.may_have_index:
            return self._open_made(transfer, files)
        try:
            return self._open_fetched(transfer)
        except ObjectNotFoundError as error:
            with suppress(ObjectNotFoundError, RequestRefusedError, AccessDeniedError):
                return self._open_made(transfer, files)
            raise error from None  # there are no other files either, or nobody may see them

    def _open_made(self, transfer: Transfer, files: FilesRequest) -> Fetched:
        folder, origin = self._budget.folder(transfer.directory), self._origins.of(transfer.stream)
        try:
            keep = partial(keep_scanned, self._budget, folder, partial(self._publish_scanned, transfer))
            made = self._files.find(folder, origin, files, transfer, keep)
            with self._holding(transfer, INDEX_NAME):
                edition = self._files.open(folder, made, partial(self._budget.evict, transfer.directory))
                self.watch.begin(edition)
                self._copies.begin(edition)
        except CancelledError as error:
            raise NoLongerWanted from error
        except (ObjectNotFoundError, AccessDeniedError, ObjectChangedError, RequestRefusedError):
            raise
        except StoreError as error:
            last = last_edition(transfer.directory, source_of(origin, files), digest_of)
            if last is None:
                raise
            last.reopen()
            return Fetched(edition=last.name, away=str(error))
        return _opened(edition, origin)

    def _publish_scanned(self, transfer: Transfer, item: Item, scanned: KeptBytes) -> Record | None:
        """Lay a shard into the cache whose bytes were read to index them; None: something else has its name."""
        folder = self._budget.folder(transfer.directory)
        with self._holding(transfer, item.name):
            if is_name_taken(transfer.directory, item.name):
                return None
            copy = Copy(item.name, is_right=False)
            record = replace(self._download(transfer, item, None, copy), scanned=scanned).run()
        if record.boot is not None:
            self._flusher.add(transfer.directory, record, folder.ledger)
        return record

    def _open_fetched(self, transfer: Transfer) -> Fetched:
        folder, origin = self._budget.folder(transfer.directory), self._origins.of(transfer.stream)
        try:
            item, beginning = self._sized(transfer)
            num_bytes = item.parts[0].stored.num_bytes or 0
            if num_bytes > MAX_INDEX_BYTES:
                raise BadIndexError(
                    f"{origin.where(INDEX_NAME)} has {format_bytes(num_bytes)}, and penstock reads indexes of at"
                    f" most {format_bytes(MAX_INDEX_BYTES)}: merge small shards into larger ones",
                    num_bytes=num_bytes,
                )
            transfer.begin(num_bytes)
            download = self._download(transfer, item, beginning, Copy(item.name, is_right=False))
            # Others open the same index meanwhile, so its name is free; but nobody may clear what is on its way.
            held = self._stripes.try_take_any(transfer.directory, item.name)
            stripe = stripe_of(item.name if held is None else held.name)
            with held or nullcontext(), download.fetched_index(stripe) as (path, info):
                self._counts.add_download(transfer.demand().cause, info.num_bytes, (transfer.directory, item.identity))
                with self._holding(transfer, item.name):
                    evict = partial(self._budget.evict, transfer.directory)
                    edition = self._opener.open(folder, origin, path, info, evict)
                    self.watch.begin(edition)
                    self._copies.begin(edition)
        except CancelledError as error:
            raise NoLongerWanted from error
        except (ObjectNotFoundError, AccessDeniedError):
            raise
        except StoreError as error:
            last = self._last(transfer, folder, origin)
            if last is None:
                raise
            return Fetched(edition=last.name, away=str(error))
        return _opened(edition, origin)

    def _last(self, transfer: Transfer, folder: Folder, origin: Origin) -> Edition | None:
        """Give the edition that was opened last, or one of the index that somebody else laid there."""
        edition = last_edition(transfer.directory, origin.name, digest_of)
        if edition is not None:
            edition.reopen()
            return edition
        if look(transfer.directory, INDEX_NAME) is None:
            return None
        with self._holding(transfer, INDEX_NAME):
            copied = new_part_path(transfer.directory, stripe_of(INDEX_NAME))
            make_folders(copied.parent, 0o700)
            copy_file(transfer.directory / INDEX_NAME, copied)
            evict = partial(self._budget.evict, transfer.directory)
            return self._opener.open(folder, origin, copied, None, evict)

    def _sized(self, transfer: Transfer) -> tuple[Item, Beginning | None]:
        """Learn the size of an object that came without one: room cannot be made for the unknown.

        One question for its beginning answers that too, and of a small object it is all.
        """
        item = transfer.item
        (part,) = item.parts
        origin, key = self._origins.of(transfer.stream), part.raw.key

        def ask() -> tuple[ObjectInfo, Beginning | None]:
            read_first = getattr(origin.store, "read_first", None)
            if read_first is None:
                return origin.store.stat(key), None
            ahead = None if self._ahead is None or not item.is_index else self._ahead.take(transfer.stream.store, key)
            data, info = ahead or read_first(key, FIRST_BYTES)
            return info, Beginning(data, info)

        asked = self._pool.submit(transfer, 0, origin, key, ask)
        try:
            ((info, beginning),) = self._pool.wait([asked])
        except CancelledError as error:
            raise NoLongerWanted from error
        sized = part._replace(raw=part.raw._replace(num_bytes=info.num_bytes))
        return item._replace(parts=(sized,)), beginning


def _opened(edition: Edition, origin: Origin) -> Fetched:
    """Say what was opened, and warn of a server that sends more than it is asked for."""
    if origin.has_ranges:
        return Fetched(edition=edition.name, revision=origin.revision())
    text = (
        f"{origin.where('')}: this server does not support range requests, so penstock downloads whole shards even for"
        " a few samples: use a server that supports them, such as nginx, or an object store"
    )
    return Fetched(edition=edition.name, revision=origin.revision(), has_ranges=False, warnings=(text,))
