"""One job from the wish to the file: room, lock, download. Runs in the engine's threads."""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.cache.bring import Beginning, Bring, reads_first, split
from penstock.cache.folder import is_complete
from penstock.cache.layout import stripe_of
from penstock.cache.pool import PIECE_BYTES, Owner
from penstock.cache.source import Source
from penstock.errors import CacheError, PenstockError
from penstock.files import translated
from penstock.storage.base import open_store
from penstock.storage.ranges import coalesce, cut_out
from penstock.storage.retry import RetryHooks, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.cache.counts import Counts
    from penstock.cache.item import Item
    from penstock.cache.jobs import Job
    from penstock.cache.lock import Stripes
    from penstock.cache.pool import PiecePool
    from penstock.cache.room import Reservation, Room
    from penstock.cache.settings import CachedStream
    from penstock.storage.base import ObjectInfo, Store
    from penstock.types import Place, Span

_log = logging.getLogger("penstock.cache")
_BEGINNING_BYTES = 1 << 20
_DELETED_TRIES = 5  # how often a directory may be deleted under one download


class NoLongerWanted(Exception):  # noqa: N818  no error: whoever wanted it has left
    """A job was given up."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A job that may go on: its item is there already, or has its room, or its size is yet to be learnt."""

    item: Item
    reservation: Reservation | None = None
    is_there: bool = False


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
        self._stores: dict[str, Store] = {}
        self._opening = threading.Lock()
        self._hooks = RetryHooks(on_retry=lambda _: self._on_retry())

    def admit(self, job: Job) -> Admission | None:
        """Make room for a job without waiting for anybody; None: there is none now.

        Jobs are admitted one after the other, so that what is needed later never takes the room of what is needed
        sooner.
        """
        item, is_urgent = job.item, job.is_urgent
        if job.is_cancelled:
            raise NoLongerWanted
        if self._is_there(job, item):
            return Admission(item, is_there=True)
        if item.parts[0].stored.num_bytes is None:
            return Admission(item)
        reservation = self._room.reserve(
            job.directory, item, keep_zip=job.stream.keep_zip, is_urgent=is_urgent, insists=job.insists()
        )
        return None if reservation is None else Admission(item, reservation)

    def carry(self, job: Job, admission: Admission) -> dict[str, Any] | None:
        """Bring an item that was admitted; None: its size is known only now, and there is no room for it."""
        item, reservation = admission.item, admission.reservation
        if admission.is_there:
            return {"downloaded": 0}
        begun: list[Beginning] = []
        if reservation is None:
            item = self._sized(job, begun)
            reservation = self._room.reserve(
                job.directory, item, keep_zip=job.stream.keep_zip, is_urgent=True, insists=job.insists()
            )
            if reservation is None:
                return None
        arrived = None
        try:
            num_bytes = self._carry_again(job, item, begun)
            arrived = item
            return {"downloaded": num_bytes}
        finally:
            self._room.settle(reservation, arrived, hand_over=bool(job.tickets))

    def _is_there(self, job: Job, item: Item) -> bool:
        if item.refresh or not is_complete(job.directory, item):
            return False
        self._room.found(job.directory, item, hand_over=bool(job.tickets))
        return True

    def _carry_again(self, job: Job, item: Item, begun: list[Beginning]) -> int:
        for _ in range(_DELETED_TRIES - 1):
            try:
                return self._carry_locked(job, item, begun)
            except FileNotFoundError as error:
                if isinstance(error, PenstockError) and not _is_below(job.directory, error):
                    raise
                _log.info("%s was deleted while %s was on its way: again", job.directory, item.name)
        with translated(job.directory):
            return self._carry_locked(job, item, begun)

    def _carry_locked(self, job: Job, item: Item, begun: list[Beginning]) -> int:
        """Download unless another fetcher was quicker, and give the number of bytes that came."""
        stripe = self._stripes.take(
            job.directory, stripe_of(item.name), job.stream.timeout_s, should_stop=lambda: job.is_cancelled
        )
        try:
            if not item.refresh and is_complete(job.directory, item):
                return 0
            credit = job.credit()
            self._download(job, item, begun)
        finally:
            self._stripes.leave(stripe)
        num_bytes = item.packed_bytes or item.raw_bytes
        self._counts.add_download(credit, num_bytes)
        return num_bytes

    def _download(self, job: Job, item: Item, begun: list[Beginning]) -> None:
        job.num_bytes_done = 0
        try:
            Bring(
                item=item,
                directory=job.directory,
                source=self._source(job.stream),
                keep_zip=job.stream.keep_zip,
                pool=self._pool,
                owner=job,
                unpacking=self._unpacking,
                on_bytes=lambda num_bytes: self._on_bytes(job, num_bytes),
                on_retry=self._on_retry,
                begun=begun,
            ).run()
        except CancelledError as error:
            raise NoLongerWanted from error

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

    def read(self, settings: CachedStream, places: Sequence[Place]) -> list[list[Buffer]]:
        """Give objects or ranges of them, all read at the same time: near ranges together, whole objects in pieces."""
        source, owner = self._source(settings), _Reader()
        wanted: dict[str, list[Span]] = {}
        for key, span in places:
            if span is not None:
                wanted.setdefault(key, []).append(span)
        ranges = {key: coalesce(spans, most_bytes=PIECE_BYTES) for key, spans in wanted.items()}
        try:
            whole = self._stat_all(source, owner, [key for key, span in places if span is None])
            found = self._read_all(source, owner, ranges, dict.fromkeys(ranges))
            objects = {key: split(info.num_bytes) for key, info in whole.items()}
            etags = {key: info.etag for key, info in whole.items()}
            complete = self._read_all(source, owner, objects, etags)
        except CancelledError as error:
            raise CacheError("the fetcher is closing") from error
        cut = {key: iter(cut_out(spans, ranges[key], found[key])) for key, spans in wanted.items()}
        return [complete[key] if span is None else [next(cut[key])] for key, span in places]

    def _stat_all(self, source: Source, owner: Owner, keys: Sequence[str]) -> dict[str, ObjectInfo]:
        asked = [self._pool.submit(owner, 0, source, key, partial(source.store.stat, key)) for key in keys]
        return dict(zip(keys, self._pool.wait(asked), strict=True))

    def _read_all(
        self, source: Source, owner: Owner, wanted: Mapping[str, list[Span]], etags: Mapping[str, str | None]
    ) -> dict[str, list[Buffer]]:
        def read(key: str, span: Span) -> Buffer:
            return source.store.read_piece(key, span, etags[key])[0]

        pieces = [
            self._pool.submit(owner, len(span), source, key, partial(read, key, span))
            for key, spans in wanted.items()
            for span in spans
        ]
        data = iter(self._pool.wait(pieces))
        self._counts.add("bytes", sum(piece.num_bytes for piece in pieces))
        return {key: [next(data) for _ in spans] for key, spans in wanted.items()}

    def _source(self, settings: CachedStream) -> Source:
        with self._opening:
            policy = RetryPolicy.of(settings.retry, settings.timeout_s)
            known = f"{policy} {settings.store.url} {sorted(settings.store.options.items(), key=str)!r}"
            store = self._stores.get(known)
            if store is None:
                store = self._stores[known] = open_store(settings.store, retry=policy, hooks=self._hooks)
        return Source(store=store, url=settings.store.url, retry=settings.retry, timeout_s=settings.timeout_s)

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
