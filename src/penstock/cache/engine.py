"""The fetching itself: takes everybody's wishes, and brings them to their directories with a bounded set of threads.

It knows nothing of sockets: the fetcher process serves it to others, and stores that live in the memory of one
process run it in that process.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.cache.bring import Bring, Source, split, try_again
from penstock.cache.folder import is_complete
from penstock.cache.jobs import GroupKey, Job, JobKey, JobQueue, Plans, State, Ticket, Want
from penstock.cache.layout import stripe_of
from penstock.cache.lock import Stripes
from penstock.cache.pool import Owner, PiecePool
from penstock.cache.room import Reservation, Room
from penstock.errors import CacheError, CacheTooSmallError, PenstockError
from penstock.files import translated
from penstock.storage.base import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.cache.item import Item
    from penstock.cache.settings import CachedStream
    from penstock.storage.base import Store
    from penstock.types import Span

_log = logging.getLogger("penstock.cache")
_MOST_DRIVERS = 32
_MOST_URGENT_DRIVERS = 64
_FAILED_FOR_S = 30.0  # a prefetch that failed is not tried again so soon, unless somebody asks
_DELETED_TRIES = 5  # how often a directory may be deleted under one download
_TICK_S = 1.0


class _Cancelled(Exception):  # noqa: N818  no error: nobody wants it any more
    pass


class _Reader(Owner):
    """On whose behalf ranges are read that go straight to whoever asks."""

    def __init__(self) -> None:
        self._rank = (0.0, time.monotonic())

    def rank(self) -> tuple[float, ...]:
        return self._rank


@dataclass(frozen=True, slots=True)
class _Group:
    streams: tuple[CachedStream, ...]
    limit_bytes: int | None


class Engine:
    """Safe for threads. Every wish ends: with the item, with an error, or with the client that made it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue = JobQueue()
        self._plans = Plans()
        self._groups: dict[GroupKey, _Group] = {}
        self._stripes = Stripes()
        self._room = Room(self._stripes)
        self._pool = PiecePool()
        self._unpacking = threading.Semaphore(max(2, os.cpu_count() or 2))
        self._stores: dict[str, Store] = {}
        self._failed: dict[JobKey, float] = {}
        self._num_drivers = 0
        self._num_idle = 0
        self._clock: threading.Thread | None = None
        self._is_closed = False
        self._counts: Counter[str] = Counter()
        self._caused: dict[GroupKey, dict[int, list[int]]] = {}
        self._rate = _Rate()

    # --- Clients --------------------------------------------------------------------------------------------

    def register(self, group: GroupKey, streams: Sequence[CachedStream], limit_bytes: int | None) -> list[str]:
        """Learn of a group of directories; gives warnings to show to its user."""
        warnings = self._room.open(group, [stream.directory for stream in streams], limit_bytes)
        with self._changed:
            self._groups[group] = _Group(tuple(streams), limit_bytes)
            self._caused.setdefault(group, {})
        return warnings

    def unregister(self, group: GroupKey) -> None:
        """Forget a group, its plan and its requests."""
        with self._changed:
            self._forget_plan(group)
            for job in list(self._queue.jobs.values()):
                gone = [ticket for ticket in job.tickets if ticket.group == group]
                if gone:
                    job.tickets = [ticket for ticket in job.tickets if ticket.group != group]
                    self._reconsider(job)
                    for ticket in gone:
                        ticket.future.cancel()
            self._groups.pop(group, None)
            self._caused.pop(group, None)
            left = {str(stream.directory) for other in self._groups.values() for stream in other.streams}
            for job in self._queue.jobs.values():
                if job.key[0] not in left:
                    job.is_cancelled = True
        self._room.close(group)
        self.released()

    def drop_client(self, client: int) -> None:
        """Forget all groups of a client that left."""
        with self._changed:
            groups = [group for group in self._groups if group[0] == client]
        for group in groups:
            self.unregister(group)

    # --- Wishes ---------------------------------------------------------------------------------------------

    def ask(self, group: GroupKey, stream: int, item: Item, *, is_urgent: bool = True) -> Ticket:
        """Request an item; the ticket's future gives what was done, or the error."""
        settings = self._stream(group, stream)
        ticket = Ticket(group, stream, is_urgent, settings.timeout_s)
        with self._changed:
            job = self._job(settings, item)
            if item.refresh and not job.item.refresh:
                job.item = item
            job.tickets.append(ticket)
            self._queue.update(job)
            self._staff()
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Take a request back."""
        with self._changed:
            for job in list(self._queue.jobs.values()):
                if ticket in job.tickets:
                    job.tickets.remove(ticket)
                    self._reconsider(job)
        ticket.future.cancel()

    def expect(self, group: GroupKey, wants: Sequence[Want]) -> None:
        """Replace a group's plan: bring what is absent, soonest first, and keep what is there."""
        with self._changed:
            streams = self._groups[group].streams
            plan: dict[JobKey, int] = {}
            for want in wants:
                key = str(streams[want.stream].directory), want.item.name
                plan[key] = min(want.ahead, plan.get(key, want.ahead))
            for key in self._plans.replace(group, plan):
                self._unplan(group, key)
            now = time.monotonic()
            for want in wants:
                if not want.is_present:
                    self._prefetch(group, want, streams[want.stream], now)
            self._staff()
        self._protect(group)
        self.released()

    def released(self) -> None:
        """Note that there may be room now where there was none."""
        with self._changed:
            self._queue.unpark()
            self._staff()

    def taken(self, group: GroupKey, stream: int, name: str) -> None:
        """Note that the reader of an item has locked it itself."""
        self._room.taken(self._stream(group, stream).directory, name)

    def read(self, group: GroupKey, stream: int, key: str, spans: Sequence[Span] | None) -> Future[list[Any]]:
        """Read ranges of an object, or all of it, without touching the disk."""
        settings = self._stream(group, stream)
        future: Future[list[Any]] = Future()

        def run() -> None:
            try:
                future.set_result(self._read(settings, key, spans))
            except BaseException as error:  # noqa: BLE001  raised where it is waited for
                future.set_exception(error)

        threading.Thread(target=run, name="penstock-read", daemon=True).start()
        return future

    # --- Looking in -----------------------------------------------------------------------------------------

    def progress(self, ticket: Ticket) -> dict[str, Any]:
        """Say how far the request is that somebody waits for."""
        with self._changed:
            for job in self._queue.jobs.values():
                if ticket in job.tickets:
                    return {
                        "name": job.item.name,
                        "bytes": job.num_bytes_done,
                        "of": job.item.packed_bytes or job.item.raw_bytes,
                        "rate": self._rate.now(),
                        "position": self._queue.position(job),
                        "wanted": len(self._queue),
                        "state": job.state.name.lower(),
                    }
        return {}

    def caused(self, group: GroupKey) -> dict[int, list[int]]:
        """Give the downloads and bytes that each stream of a group caused."""
        with self._changed:
            return {stream: list(counts) for stream, counts in self._caused.get(group, {}).items()}

    def stats(self) -> dict[str, Any]:
        """Give counts since the start, and what goes on now."""
        with self._changed:
            return {
                "downloads": self._counts["downloads"],
                "bytes": self._counts["bytes"],
                "retries": self._counts["retries"],
                "errors": self._counts["errors"],
                "evictions": self._room.num_evictions,
                "evicted_bytes": self._room.evicted_bytes,
                "in_flight": sum(job.state is State.RUNNING for job in self._queue.jobs.values()),
                "queued": sum(job.state is not State.RUNNING for job in self._queue.jobs.values()),
                "pieces_in_flight": self._pool.num_running,
                "concurrency": self._pool.limit,
                "bytes_per_s": self._rate.now(),
                "directories": self._room.usage(),
                "groups": len(self._groups),
            }

    def close(self) -> None:
        """Stop. What is on its way is given up; its temporary files are removed as its threads notice."""
        with self._changed:
            self._is_closed = True
            for job in self._queue.jobs.values():
                job.is_cancelled = True
                for ticket in job.tickets:
                    ticket.future.cancel()
            self._changed.notify_all()
        self._pool.close()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no thread works on an item any more."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while any(job.state is State.RUNNING for job in self._queue.jobs.values()):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    # --- Keeping the books (under the lock) -----------------------------------------------------------------

    def _stream(self, group: GroupKey, stream: int) -> CachedStream:
        with self._changed:
            try:
                return self._groups[group].streams[stream]
            except (KeyError, IndexError) as error:
                raise CacheError("the fetcher was asked about a stream that nobody told it of") from error

    def _job(self, settings: CachedStream, item: Item) -> Job:
        key = str(settings.directory), item.name
        return self._queue.get(key, lambda: Job(settings.directory, item, settings))

    def _prefetch(self, group: GroupKey, want: Want, settings: CachedStream, now: float) -> None:
        key = str(settings.directory), want.item.name
        if self._failed.get(key, 0.0) > now:
            return
        job = self._job(settings, want.item)
        before = job.soonest()
        is_new = not job.is_wanted
        job.ahead[group, want.stream] = want.ahead
        if is_new or job.soonest() != before:
            self._queue.update(job)

    def _unplan(self, group: GroupKey, key: JobKey) -> None:
        job = self._queue.jobs.get(key)
        if job is not None:
            job.ahead = {whose: ahead for whose, ahead in job.ahead.items() if whose[0] != group}
            self._reconsider(job)

    def _forget_plan(self, group: GroupKey) -> None:
        for key in self._plans.drop(group):
            self._unplan(group, key)

    def _reconsider(self, job: Job) -> None:
        """After somebody lost interest: a running download goes on, since most of its cost is paid."""
        if job.state is State.PARKED and not job.is_wanted:
            self._queue.remove(job)
        else:
            self._queue.update(job)

    def _protect(self, group: GroupKey) -> None:
        """Tell the directories of a limit what is expected of them."""
        with self._changed:
            streams = self._groups[group].streams if group in self._groups else ()
        bound = [stream.directory for stream in streams if self._room.bound_with(stream.directory)]
        if not bound:
            return
        with self._changed:
            merged = self._plans.ahead_in({str(directory) for directory in bound})
        for directory in {str(directory): directory for directory in bound}.values():
            self._room.expect(directory, merged[str(directory)])

    def _staff(self) -> None:
        if self._is_closed:
            return
        if self._num_idle == 0 and self._num_drivers < _MOST_URGENT_DRIVERS and len(self._queue) > self._num_drivers:
            self._num_drivers += 1
            threading.Thread(target=self._drive_all, name="penstock-driver", daemon=True).start()
        self._changed.notify()

    # --- Driving one job after the other --------------------------------------------------------------------

    def _drive_all(self) -> None:
        while True:
            job = self._next()
            if job is None:
                return
            error: BaseException | None = None
            result: dict[str, Any] | None = None
            try:
                result = self._drive(job)
            except _Cancelled:
                if self._is_wanted_again(job):
                    continue
                error = CacheError(f"{job.item.name} is no longer wanted")
            except PenstockError as failure:
                error = failure
            except Exception as failure:  # noqa: BLE001  it goes to whoever asked
                _log.exception("fetching %s failed", job.item.name)
                error = failure
            self._finish(job, result, error)

    def _is_wanted_again(self, job: Job) -> bool:
        """Queue a job anew that was cancelled and meanwhile found somebody who wants it."""
        with self._changed:
            if self._is_closed or not job.is_wanted:
                return False
            job.is_cancelled = False
            job.state = State.QUEUED
            self._queue.update(job)
            return True

    def _next(self) -> Job | None:
        with self._changed:
            while not self._is_closed:
                num_busy = self._num_drivers - self._num_idle
                job = self._queue.pop(only_urgent=num_busy > _MOST_DRIVERS)
                if job is not None:
                    job.started_at = time.monotonic()
                    self._staff()
                    return job
                self._num_idle += 1
                self._changed.wait()
                self._num_idle -= 1
            self._num_drivers -= 1
            return None

    def _finish(self, job: Job, result: dict[str, Any] | None, error: BaseException | None) -> None:
        with self._changed:
            if result is None and error is None:
                self._park(job)
                return
            tickets, job.tickets = job.tickets, []
            self._queue.remove(job)
            if error is not None and not job.is_cancelled:
                self._counts["errors"] += 1
                self._failed[job.key] = time.monotonic() + _FAILED_FOR_S
                if not tickets:
                    _log.warning("prefetching %s failed: %s", job.item.name, error)
            else:
                self._failed.pop(job.key, None)
            self._queue.unpark()
            self._staff()
            self._changed.notify_all()
        for ticket in tickets:
            if not ticket.future.set_running_or_notify_cancel():
                continue
            if error is not None:
                ticket.future.set_exception(error)
            else:
                ticket.future.set_result(result or {})

    def _park(self, job: Job) -> None:
        """Put a job aside for want of room; prefetches that would compete for it stay back too."""
        now = time.monotonic()
        for ticket in job.tickets:
            ticket.parked_at = ticket.parked_at or now
        self._queue.park(job)
        self._queue.stalled |= self._room.bound_with(job.directory) | {job.key[0]}
        if self._clock is None:
            self._clock = threading.Thread(target=self._tick, name="penstock-clock", daemon=True)
            self._clock.start()

    def _tick(self) -> None:
        """While anything is parked, let it try again now and then, and end what has waited too long."""
        while True:
            with self._changed:
                late = [
                    (job, ticket)
                    for job in self._queue.parked()
                    for ticket in job.tickets
                    if ticket.parked_at is not None and time.monotonic() > ticket.parked_at + ticket.timeout_s
                ]
                for job, ticket in late:
                    job.tickets.remove(ticket)
                    self._reconsider(job)
                if self._is_closed or not (self._queue.parked() or self._queue.stalled):
                    self._clock = None
                    done = True
                else:
                    self._queue.unpark()
                    self._staff()
                    self._changed.notify_all()
                    done = False
            for job, ticket in late:
                if ticket.future.set_running_or_notify_cancel():
                    ticket.future.set_exception(self._too_small(job, ticket))
            if done:
                return
            time.sleep(_TICK_S)

    def _too_small(self, job: Job, ticket: Ticket) -> CacheTooSmallError:
        return CacheTooSmallError(
            f"no room for {job.item.name} in {job.directory} within {ticket.timeout_s:g} s:"
            f" {self._room.describe(job.directory)}, all of it in use or pinned. Raise cache_limit, or keep fewer"
            " shards open at once",
            needed=job.item.raw_bytes,
        )

    # --- One job --------------------------------------------------------------------------------------------

    def _drive(self, job: Job) -> dict[str, Any] | None:
        """Bring an item; None: there is no room for it now."""
        for _ in range(_DELETED_TRIES - 1):
            try:
                return self._bring(job)
            except FileNotFoundError as error:
                if isinstance(error, PenstockError):
                    raise
                _log.info("%s was deleted while %s was on its way: again", job.directory, job.item.name)
        with translated(job.directory):
            return self._bring(job)

    def _bring(self, job: Job) -> dict[str, Any] | None:
        if job.is_cancelled:
            raise _Cancelled
        item = self._sized(job)
        if not item.refresh and is_complete(job.directory, item):
            self._room.found(job.directory, item)
            return {"downloaded": 0}
        reservation = self._room.reserve(job.directory, item, keep_zip=job.stream.keep_zip, is_urgent=job.is_urgent)
        if reservation is None:
            return None
        return self._bring_into(job, item, reservation)

    def _bring_into(self, job: Job, item: Item, reservation: Reservation) -> dict[str, Any]:
        arrived: Item | None = None
        try:
            stripe = self._stripes.take(
                job.directory, stripe_of(item.name), job.stream.timeout_s, should_stop=lambda: job.is_cancelled
            )
            try:
                if not item.refresh and is_complete(job.directory, item):
                    arrived = item  # another fetcher was quicker
                    return {"downloaded": 0}
                credit = job.credit()
                self._download(job, item)
                arrived = item
            finally:
                self._stripes.leave(stripe)
            num_bytes = item.packed_bytes or item.raw_bytes
            self._count_download(credit, num_bytes)
            return {"downloaded": num_bytes}
        finally:
            self._room.settle(reservation, arrived, hand_over=bool(job.tickets))

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
            raise _Cancelled from error

    def _sized(self, job: Job) -> Item:
        """Learn the size of an object that came without one: room cannot be made for the unknown."""
        item = job.item
        if item.raw_bytes or any(part.raw.num_bytes is not None for part in item.parts):
            return item
        if not item.refresh and is_complete(job.directory, item):
            return item
        (part,) = item.parts
        source = self._source(job.stream)
        ask = self._pool.submit(
            job,
            0,
            source.timeout_s,
            lambda: try_again(lambda: source.store.stat(part.raw.key), source.retry, self._on_retry),
        )
        (info,) = self._pool.wait([ask])
        return replace(item, parts=(replace(part, raw=replace(part.raw, num_bytes=info.num_bytes)),))

    def _read(self, settings: CachedStream, key: str, spans: Sequence[Span] | None) -> list[Any]:
        source = self._source(settings)
        owner = _Reader()

        def submit(num_bytes: int, action: Callable[[], Any]) -> Any:
            return self._pool.submit(
                owner, num_bytes, source.timeout_s, lambda: try_again(action, source.retry, self._on_retry)
            )

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
        with self._changed:
            self._counts["bytes"] += sum(len(span) for span in spans)
        return found

    def _source(self, settings: CachedStream) -> Source:
        with self._changed:
            known = f"{settings.store.url} {sorted(settings.store.options.items(), key=str)!r}"
            store = self._stores.get(known)
            if store is None:
                store = self._stores[known] = open_store(settings.store)
        return Source(store=store, url=settings.store.url, retry=settings.retry, timeout_s=settings.timeout_s)

    def _on_bytes(self, job: Job, num_bytes: int) -> None:
        if job.is_cancelled:
            raise CancelledError
        with self._changed:
            job.num_bytes_done += num_bytes
            self._rate.add(num_bytes)

    def _on_retry(self) -> None:
        with self._changed:
            self._counts["retries"] += 1

    def _count_download(self, credit: tuple[GroupKey, int] | None, num_bytes: int) -> None:
        with self._changed:
            self._counts["downloads"] += 1
            self._counts["bytes"] += num_bytes
            if credit is not None and credit[0] in self._caused:
                counts = self._caused[credit[0]].setdefault(credit[1], [0, 0])
                counts[0] += 1
                counts[1] += num_bytes


class _Rate:
    """Bytes per second, over about the last two seconds."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._num_bytes = 0
        self._last = 0.0

    def add(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._roll()

    def now(self) -> float:
        self._roll()
        passed = time.monotonic() - self._begin
        return self._last if passed < 0.5 else self._num_bytes / passed

    def _roll(self) -> None:
        passed = time.monotonic() - self._begin
        if passed >= 2.0:
            self._last = self._num_bytes / passed
            self._begin, self._num_bytes = time.monotonic(), 0
