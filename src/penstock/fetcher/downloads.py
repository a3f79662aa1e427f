"""One job from the wish to the file: room, lock, download. Runs in the engine's threads."""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.cachedir.editions import Edition, last_edition
from penstock.cachedir.layout import new_part_path, stripe_of
from penstock.cachedir.presence import look
from penstock.errors import (
    AccessDeniedError,
    BadIndexError,
    CacheError,
    ObjectChangedError,
    ObjectNotFoundError,
    PenstockError,
    StoreError,
)
from penstock.fetcher.copies import Copies, Copy
from penstock.fetcher.download import Beginning, Bring, reads_first, split
from penstock.fetcher.flush import Flusher
from penstock.fetcher.opening import Openings, digest_of
from penstock.fetcher.pieces import PIECE_BYTES, Owner
from penstock.fetcher.source import Source, source_name
from penstock.fetcher.watch import Watch
from penstock.files import copy_file, make_folders, translated
from penstock.index.catalog import INDEX_NAME, MAX_INDEX_BYTES
from penstock.storage.base import open_store
from penstock.storage.ranges import coalesce, cut_out
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.units import format_bytes
from penstock.wire.item import Item, ItemPart, StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.cachedir.folder import Folder
    from penstock.cachedir.ledger import Record
    from penstock.cachedir.lock import Stripes
    from penstock.fetcher.budget import Reservation, Room
    from penstock.fetcher.counts import Counts
    from penstock.fetcher.pieces import PiecePool
    from penstock.fetcher.queue import Job
    from penstock.storage.base import ObjectInfo, Store
    from penstock.types import Place, Span
    from penstock.wire.settings import CachedStream

_log = logging.getLogger("penstock.cache")
_BEGINNING_BYTES = 1 << 20
_PATIENCE = 10  # with another process that brings the same, as a multiple of that with the store
_DELETED_TRIES = 5  # how often a directory may be deleted under one download


class NoLongerWanted(Exception):  # noqa: N818  no error: whoever wanted it has left
    """A job was given up."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A job that may go on: its item is there already, or has its room, or it is not yet known what room it needs."""

    item: Item
    reservation: Reservation | None = None
    copy: Copy | None = None


class _Reader(Owner):
    """On whose behalf ranges are read that go straight to whoever asks."""

    def __init__(self) -> None:
        self._rank = (0.0, time.monotonic())

    def rank(self) -> tuple[float, ...]:
        return self._rank


class Haul:
    """Brings items with the means that all jobs share. Safe for threads."""

    def __init__(self, *, stripes: Stripes, room: Room, pool: PiecePool, counts: Counts) -> None:
        self._stripes = stripes
        self._room = room
        self._pool = pool
        self._counts = counts
        self._unpacking = threading.Semaphore(max(2, os.cpu_count() or 2))
        self._copies = Copies(self._unpacking)
        self._openings = Openings()
        self._watch = Watch()
        self._flusher = Flusher()
        self._stores: dict[str, Store] = {}
        self._opening = threading.Lock()
        self._hooks = RetryHooks(sleep=pool.pause, on_retry=lambda _: self._on_retry(), on_life=pool.note_life)

    def close(self) -> None:
        """End what runs beside the jobs."""
        self._flusher.close()

    def admit(self, job: Job) -> Admission | None:
        """Make room for a job without waiting for anybody; None: there is none now.

        Jobs are admitted one after the other, so that what is needed later never takes the room of what is needed
        sooner.
        """
        item, is_urgent = job.item, job.is_urgent
        if job.is_cancelled:
            raise NoLongerWanted
        if item.is_index:
            return Admission(item)
        copy = self._copies.known(self._room.folder(job.directory), item)
        if copy is not None:
            self._found(job, copy)
            return Admission(item, copy=copy)
        if item.parts[0].stored.num_bytes is None or os.path.lexists(job.directory / item.name):
            return Admission(item)
        reservation = self._room.reserve(
            job.directory, item, keep_zip=job.stream.keep_zip, is_urgent=is_urgent, insists=job.insists()
        )
        return None if reservation is None else Admission(item, reservation)

    def carry(self, job: Job, admission: Admission) -> dict[str, Any] | None:
        """Bring an item that was admitted; None: only now it is known what room it needs, and there is none."""
        item = admission.item
        if item.is_index:
            return self._again(job, item, lambda: self._open_index(job, item))
        if admission.copy is not None:
            return self._done(admission.copy, 0)
        begun: list[Beginning] = []
        if item.parts[0].stored.num_bytes is None:
            item = self._sized(job, begun)
        held = _Room(self._room, job, item, admission.reservation)
        try:
            return self._again(job, item, lambda: self._carry_held(job, item, begun, held))
        finally:
            held.end(hand_over=bool(job.tickets))

    def _found(self, job: Job, copy: Copy) -> None:
        self._room.found(job.directory, copy.name, copy.record, hand_over=bool(job.tickets))

    def _done(self, copy: Copy, num_bytes: int) -> dict[str, Any]:
        return {"downloaded": num_bytes, "name": copy.name}

    def _again(self, job: Job, item: Item, bring: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
        """Try again if the directory is deleted meanwhile."""
        for _ in range(_DELETED_TRIES - 1):
            try:
                return bring()
            except FileNotFoundError as error:
                if isinstance(error, PenstockError) and not _is_below(job.directory, error):
                    raise
                _log.info("%s was deleted while %s was on its way: again", job.directory, item.name)
        with translated(job.directory):
            return bring()

    @contextmanager
    def _holding(self, job: Job, name: str) -> Iterator[None]:
        # Whoever has the name may be bringing it over a slow network, and gives up by himself.
        timeout_s = _PATIENCE * job.stream.timeout_s
        held = self._stripes.take(job.directory, name, timeout_s, should_stop=lambda: job.is_cancelled)
        try:
            yield
        finally:
            self._stripes.leave(held)

    def _carry_held(self, job: Job, item: Item, begun: list[Beginning], held: _Room) -> dict[str, Any] | None:
        """Download unless the right copy is there, maybe brought by another fetcher."""
        folder, source = self._room.folder(job.directory), self._source(job.stream)
        with self._holding(job, item.name):
            copy = self._copies.find(folder, item, source, partial(self._room.evict_held, job.directory))
            if copy.is_right:
                self._found(job, copy)
                return self._done(copy, 0)
            if not held.reserve():
                return None
            credit = job.credit()
            record = self._download(job, item, copy, begun)
            held.arrived = record
            if item.number is not None:
                edition = Edition(job.directory, item.edition)
                files = record.files[: len(item.parts)]
                edition.confirm(item.number, files, is_apart=copy.name != item.name)
        if record.boot is not None:
            self._flusher.add(job.directory, record, folder.ledger)
        num_bytes = item.packed_bytes or item.raw_bytes
        self._counts.add_download(credit, num_bytes)
        return self._done(copy, num_bytes)

    def _download(self, job: Job, item: Item, copy: Copy, begun: list[Beginning]) -> Record:
        job.num_bytes_done = 0
        try:
            return self._bring(job, item, begun, copy).run()
        except CancelledError as error:
            raise NoLongerWanted from error

    def _bring(self, job: Job, item: Item, begun: list[Beginning], copy: Copy) -> Bring:
        folder, source = self._room.folder(job.directory), self._source(job.stream)
        return Bring(
            item=item,
            directory=job.directory,
            source=source,
            keep_zip=job.stream.keep_zip,
            pool=self._pool,
            owner=job,
            unpacking=self._unpacking,
            on_bytes=lambda num_bytes: self._on_bytes(job, num_bytes),
            on_retry=self._on_retry,
            begun=begun,
            ledger=folder.ledger,
            name_of=partial(copy.path_of, item),
            kept=partial(self._copies.kept, folder, item),
            check=lambda infos: self._watch.check(job.directory, item, infos, source),
            explain=lambda key: self._watch.explain(job.directory, item.edition, source, key),
            file_mode=0o600 if job.stream.is_private else 0o666,
        )

    # --- The index ------------------------------------------------------------------------------------------

    def _open_index(self, job: Job, item: Item) -> dict[str, Any]:
        """Fetch the index and open its edition; the one that was opened last serves if the store is away."""
        folder, source = self._room.folder(job.directory), self._source(job.stream)
        temporary: list[Path] = []
        try:
            begun: list[Beginning] = []
            item = self._sized(job, begun)
            _check_index_size(item, source)
            bring = self._bring(job, item, begun, Copy(item.name, is_right=False))
            path, info = bring.fetch_index(temporary)
            self._counts.add_download(job.credit(), info.num_bytes)
            with self._holding(job, item.name):
                evict = partial(self._room.evict, job.directory)
                edition = self._openings.open(folder, source, path, info, evict)
                self._watch.begin(edition)
                self._copies.begin(edition)
        except CancelledError as error:
            raise NoLongerWanted from error
        except (ObjectNotFoundError, AccessDeniedError):
            raise
        except StoreError as error:
            last = self._last(job, folder, source)
            if last is None:
                raise
            return {"edition": last.name, "away": str(error)}
        finally:
            for left in temporary:
                left.unlink(missing_ok=True)
        return {"edition": edition.name}

    def _last(self, job: Job, folder: Folder, source: Source) -> Edition | None:
        """Give the edition that was opened last, or one of the index that somebody else laid there."""
        edition = last_edition(job.directory, source.name, digest_of)
        if edition is not None:
            edition.reopen()
            return edition
        if look(job.directory, INDEX_NAME) is None:
            return None
        with self._holding(job, INDEX_NAME):
            copied = new_part_path(job.directory, stripe_of(INDEX_NAME))
            make_folders(copied.parent, 0o700)
            copy_file(job.directory / INDEX_NAME, copied)
            evict = partial(self._room.evict, job.directory)
            return self._openings.open(folder, source, copied, None, evict)

    def _sized(self, job: Job, begun: list[Beginning]) -> Item:
        """Learn the size of an object that came without one: room cannot be made for the unknown.

        One question for its beginning answers that too, and of a small object it is all.
        """
        item = job.item
        (part,) = item.parts
        source, key = self._source(job.stream), part.raw.key

        def ask() -> ObjectInfo:
            if not reads_first(source.store):
                return source.store.stat(key)
            data, info = source.store.read_first(key, _BEGINNING_BYTES)
            begun.append(Beginning(data, info))
            return info

        asked = self._pool.submit(job, 0, source, key, ask)
        try:
            (info,) = self._pool.wait([asked])
        except CancelledError as error:
            raise NoLongerWanted from error
        return replace(item, parts=(replace(part, raw=replace(part.raw, num_bytes=info.num_bytes)),))

    def read(
        self, settings: CachedStream, places: Sequence[Place], edition: str, shards: Mapping[str, int]
    ) -> list[list[Buffer]]:
        """Give objects or ranges of them, all read at the same time: near ranges together, whole objects in pieces.

        `shards` numbers the objects that are shards of an edition: all that is ever read of one is of one version.
        """
        source, owner = self._source(settings), _Reader()
        wanted: dict[str, list[Span]] = {}
        for key, span in places:
            if span is not None:
                wanted.setdefault(key, []).append(span)
        ranges = {key: coalesce(spans, most_bytes=PIECE_BYTES) for key, spans in wanted.items()}
        try:
            whole = self._stat_all(source, owner, [key for key, span in places if span is None])
            pinned = {key: self._watch.tag(settings.directory, edition, key) for key in ranges}
            found, infos = self._read_all(source, owner, ranges, pinned)
            for key, number in shards.items():
                if key in infos:
                    self._watch.check(settings.directory, _shard_item(key, number, edition), [infos[key]], source)
            objects = {key: split(info.num_bytes) for key, info in whole.items()}
            etags = {key: info.etag for key, info in whole.items()}
            complete, _ = self._read_all(source, owner, objects, etags)
        except CancelledError as error:
            raise CacheError("the fetcher is closing") from error
        cut = {key: iter(cut_out(spans, ranges[key], found[key])) for key, spans in wanted.items()}
        return [complete[key] if span is None else [next(cut[key])] for key, span in places]

    def _stat_all(self, source: Source, owner: Owner, keys: Sequence[str]) -> dict[str, ObjectInfo]:
        asked = [self._pool.submit(owner, 0, source, key, partial(source.store.stat, key)) for key in keys]
        return dict(zip(keys, self._pool.wait(asked), strict=True))

    def _read_all(
        self, source: Source, owner: Owner, wanted: Mapping[str, list[Span]], etags: Mapping[str, str | None]
    ) -> tuple[dict[str, list[Buffer]], dict[str, ObjectInfo]]:
        def read(key: str, span: Span) -> tuple[Buffer, ObjectInfo]:
            return source.store.read_piece(key, span, etags[key])

        pieces = [
            self._pool.submit(owner, len(span), source, key, partial(read, key, span))
            for key, spans in wanted.items()
            for span in spans
        ]
        answers = iter(self._pool.wait(pieces))
        self._counts.add("bytes", sum(piece.num_bytes for piece in pieces))
        found = {key: [next(answers) for _ in spans] for key, spans in wanted.items()}
        infos = {key: _agreed(source, key, [info for _, info in parts]) for key, parts in found.items() if parts}
        return {key: [data for data, _ in parts] for key, parts in found.items()}, infos

    def _source(self, settings: CachedStream) -> Source:
        with self._opening:
            policy = RetryPolicy.of(settings.retry, settings.timeout_s)
            known = f"{policy} {settings.store.url} {sorted(settings.store.options.items(), key=str)!r}"
            store = self._stores.get(known)
            if store is None:
                store = self._stores[known] = open_store(settings.store, retry=policy, hooks=self._hooks)
        return Source(
            store=store,
            url=settings.store.url,
            name=source_name(settings.store),
            retry=settings.retry,
            timeout_s=settings.timeout_s,
        )

    def _on_bytes(self, job: Job, num_bytes: int) -> None:
        if job.is_cancelled:
            raise CancelledError
        job.num_bytes_done += num_bytes
        self._counts.add_arrived(num_bytes)

    def _on_retry(self) -> None:
        self._counts.add("retries")


def _is_below(directory: Path, error: PenstockError) -> bool:
    """Tell whether it is one of our own files that is missing, not an object of the store."""
    return str(error.facts.get("path", "")).startswith(f"{directory}{os.sep}")


class _Room:
    """The room of one job: reserved when it is known to be needed, given back when the job ends."""

    def __init__(self, room: Room, job: Job, item: Item, reservation: Reservation | None) -> None:
        self._room, self._job, self._item = room, job, item
        self._reservation = reservation
        self.arrived: Record | None = None

    def reserve(self) -> bool:
        """Have room, or say that there is none now."""
        if self._reservation is None:
            job = self._job
            self._reservation = self._room.reserve(
                job.directory,
                self._item,
                keep_zip=job.stream.keep_zip,
                is_urgent=job.is_urgent,
                insists=job.insists(),
            )
        return self._reservation is not None

    def end(self, *, hand_over: bool) -> None:
        """Give it back, and count what came."""
        if self._reservation is not None:
            self._room.settle(self._reservation, self.arrived, hand_over=hand_over)


def _shard_item(key: str, number: int, edition: str) -> Item:
    return Item((ItemPart(StoredFile(key, key, None)),), edition=edition, number=number)


def _agreed(source: Source, key: str, infos: Sequence[ObjectInfo]) -> ObjectInfo:
    """Give what an object is, if all that was read of it is of one version."""
    if any(info.etag != infos[0].etag for info in infos):
        raise ObjectChangedError(f"{source.where(key)} was replaced while it was being read: fetch it again", key=key)
    return infos[0]


def _check_index_size(item: Item, source: Source) -> None:
    num_bytes = item.parts[0].stored.num_bytes or 0
    if num_bytes > MAX_INDEX_BYTES:
        raise BadIndexError(
            f"{source.where(INDEX_NAME)} has {format_bytes(num_bytes)}, and an index of more than"
            f" {format_bytes(MAX_INDEX_BYTES)} is not read: merge small shards into larger ones",
            num_bytes=num_bytes,
        )
