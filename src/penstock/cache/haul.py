"""One job from the wish to the file: room, lock, download. Runs in the engine's threads."""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.cache.bring import Bring, split
from penstock.cache.folder import is_complete
from penstock.cache.layout import stripe_of
from penstock.cache.pool import Owner
from penstock.cache.source import Source
from penstock.errors import CacheError, PenstockError
from penstock.files import translated
from penstock.storage.base import open_store
from penstock.storage.retry import RetryHooks, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.cache.counts import Counts
    from penstock.cache.item import Item
    from penstock.cache.jobs import Job
    from penstock.cache.lock import Stripes
    from penstock.cache.pool import PiecePool
    from penstock.cache.room import Reservation, Room
    from penstock.cache.settings import CachedStream
    from penstock.storage.base import Store
    from penstock.types import Span

_log = logging.getLogger("penstock.cache")
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
        reservation = self._room.reserve(job.directory, item, keep_zip=job.stream.keep_zip, is_urgent=is_urgent)
        return None if reservation is None else Admission(item, reservation)

    def carry(self, job: Job, admission: Admission) -> dict[str, Any] | None:
        """Bring an item that was admitted; None: its size is known only now, and there is no room for it."""
        item, reservation = admission.item, admission.reservation
        if admission.is_there:
            return {"downloaded": 0}
        if reservation is None:
            item = self._sized(job)
            reservation = self._room.reserve(job.directory, item, keep_zip=job.stream.keep_zip, is_urgent=True)
            if reservation is None:
                return None
        arrived = None
        try:
            num_bytes = self._carry_again(job, item)
            arrived = item
            return {"downloaded": num_bytes}
        finally:
            self._room.settle(reservation, arrived, hand_over=bool(job.tickets))

    def _is_there(self, job: Job, item: Item) -> bool:
        if item.refresh or not is_complete(job.directory, item):
            return False
        self._room.found(job.directory, item, hand_over=bool(job.tickets))
        return True

    def _carry_again(self, job: Job, item: Item) -> int:
        for _ in range(_DELETED_TRIES - 1):
            try:
                return self._carry_locked(job, item)
            except FileNotFoundError as error:
                if isinstance(error, PenstockError) and not _is_below(job.directory, error):
                    raise
                _log.info("%s was deleted while %s was on its way: again", job.directory, item.name)
        with translated(job.directory):
            return self._carry_locked(job, item)

    def _carry_locked(self, job: Job, item: Item) -> int:
        """Download unless another fetcher was quicker, and give the number of bytes that came."""
        stripe = self._stripes.take(
            job.directory, stripe_of(item.name), job.stream.timeout_s, should_stop=lambda: job.is_cancelled
        )
        try:
            if not item.refresh and is_complete(job.directory, item):
                return 0
            credit = job.credit()
            self._download(job, item)
        finally:
            self._stripes.leave(stripe)
        num_bytes = item.packed_bytes or item.raw_bytes
        self._counts.add_download(credit, num_bytes)
        return num_bytes

    def _download(self, job: Job, item: Item) -> None:
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
            ).run()
        except CancelledError as error:
            raise NoLongerWanted from error

    def _sized(self, job: Job) -> Item:
        """Learn the size of an object that came without one: room cannot be made for the unknown."""
        item = job.item
        (part,) = item.parts
        source = self._source(job.stream)
        ask = self._pool.submit(
            job,
            0,
            source,
            part.raw.key,
            lambda: source.store.stat(part.raw.key),
        )
        try:
            (info,) = self._pool.wait([ask])
        except CancelledError as error:
            raise NoLongerWanted from error
        return replace(item, parts=(replace(part, raw=replace(part.raw, num_bytes=info.num_bytes)),))

    def read(self, settings: CachedStream, key: str, spans: Sequence[Span] | None) -> list[Any]:
        """Give ranges of an object, read at the same time, or all of it in pieces."""
        source = self._source(settings)
        owner = _Reader()

        def submit(num_bytes: int, action: Callable[[], Any]) -> Any:
            return self._pool.submit(owner, num_bytes, source, key, action)

        if spans is not None:
            etag = None
        else:
            (info,) = self._pool.wait([submit(0, lambda: source.store.stat(key))])
            spans, etag = split(info.num_bytes), info.etag
        pieces = [
            submit(len(span), lambda span=span: source.store.read_piece(key, span, etag)[0])  # type: ignore[misc]
            for span in spans
        ]
        try:
            found = self._pool.wait(pieces)
        except CancelledError as error:
            raise CacheError("the fetcher is closing") from error
        self._counts.add("bytes", sum(len(span) for span in spans))
        return found

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
