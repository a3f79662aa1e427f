"""The fetching itself: takes everybody's wishes, and brings them to their directories with a bounded set of threads.

It knows nothing of sockets: the fetcher process serves it to others, and stores that live in the memory of one
process run it in that process.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.cachedir.lock import Stripes
from penstock.cachedir.ownership import prepare_folder
from penstock.errors import CacheError, CacheTooSmallError, PenstockError
from penstock.fetcher.budget import Room
from penstock.fetcher.counts import Counts
from penstock.fetcher.downloads import Admission, Haul, NoLongerWanted
from penstock.fetcher.pieces import PiecePool
from penstock.fetcher.queue import GroupKey, Job, JobKey, JobQueue, Plans, State, Ticket, Want
from penstock.fetcher.telling import Teller
from penstock.wire.item import names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Buffer

    from penstock.types import Place
    from penstock.wire.item import Item
    from penstock.wire.settings import CachedStream
    from penstock.wire.share import Share

T = TypeVar("T")

_log = logging.getLogger("penstock.cache")
_MOST_DRIVERS = 32
_MOST_URGENT_DRIVERS = 64
_FAILED_FOR_S = 30.0  # a prefetch that failed is not tried again so soon, unless somebody asks
_TICK_S = 1.0


class Engine:
    """Safe for threads. Every wish ends: with the item, with an error, or with the client that made it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Each of these is waited on by one kind of thread only, so that a note to one never wakes another instead.
        self._work = threading.Condition(self._lock)
        self._ended = threading.Condition(self._lock)
        self._clock_news = threading.Condition(self._lock)
        self._queue = JobQueue()
        self._plans = Plans()
        self._groups: dict[GroupKey, tuple[CachedStream, ...]] = {}
        stripes = Stripes()
        self._room = Room(stripes)
        self._teller = Teller(self._room)
        self._pool = PiecePool()
        self._counts = Counts()
        self._haul = Haul(stripes=stripes, room=self._room, pool=self._pool, counts=self._counts)
        self._failed: dict[JobKey, float] = {}
        self._too_full: frozenset[str] = frozenset()  # directories that hold more than a limit that came later
        self._num_drivers = 0
        self._num_idle = 0
        self._is_admitting = False  # one at a time, so that what is needed later never takes the room of the sooner
        self._clock: threading.Thread | None = None
        self._is_closed = False

    # --- Clients --------------------------------------------------------------------------------------------

    def register(
        self,
        group: GroupKey,
        streams: Sequence[CachedStream],
        limit_bytes: int | None,
        on_share: Callable[[Share], None] = lambda _: None,
    ) -> list[str]:
        """Learn of a group of directories; gives warnings to show to its user.

        `on_share` hears at once, and whenever it changes, what the group may keep open. It must not wait for anything.
        """
        risks = [prepare_folder(stream.directory, is_private=stream.is_private) for stream in streams]
        warnings = [text for texts in risks for text in texts]
        warnings += self._room.open(group, [stream.directory for stream in streams], limit_bytes)
        too_full = self._room.trim()
        with self._lock:
            self._groups[group] = tuple(streams)
            self._counts.open(group)
            self._teller.join(group, on_share)
            self._too_full = too_full
            self._tighten(too_full)
        self._teller.tell()
        return warnings

    def unregister(self, group: GroupKey) -> None:
        """Forget a group, its plan and its requests."""
        with self._lock:
            streams = self._groups.get(group, ())
            self._forget_plan(group)
            for job in list(self._queue.jobs.values()):
                gone = [ticket for ticket in job.tickets if ticket.group == group]
                if gone:
                    job.tickets = [ticket for ticket in job.tickets if ticket.group != group]
                    self._reconsider(job)
                    for ticket in gone:
                        self._queue.forget(ticket)
                        ticket.future.cancel()
            self._groups.pop(group, None)
            self._teller.leave(group)
            self._counts.close(group)
            left = {str(stream.directory) for other in self._groups.values() for stream in other}
            for job in self._queue.jobs.values():
                if job.key[0] not in left:
                    job.is_cancelled = True
                    self._pool.cancel_all_of(job)
        self._room.close(group)
        self._protect(streams)
        self.released()
        self._teller.tell()

    def drop_client(self, client: int) -> None:
        """Forget all groups of a client that left."""
        with self._lock:
            groups = [group for group in self._groups if group[0] == client]
        for group in groups:
            self.unregister(group)

    # --- Wishes ---------------------------------------------------------------------------------------------

    def ask(self, group: GroupKey, stream: int, item: Item, *, is_urgent: bool = True) -> Ticket:
        """Request an item; the ticket's future gives what was done, or the error."""
        settings = self._stream(group, stream)
        ticket = Ticket(group, stream, is_urgent, settings.timeout_s)
        with self._lock:
            job = self._job(settings, item)
            if item.refresh and not job.item.refresh:
                job.item = item
            job.tickets.append(ticket)
            self._queue.update(job)
            self._staff()
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Take a request back."""
        with self._lock:
            self._queue.forget(ticket)
            for job in list(self._queue.jobs.values()):
                if ticket in job.tickets:
                    job.tickets.remove(ticket)
                    self._reconsider(job)
        ticket.future.cancel()

    def expect(self, group: GroupKey, wants: Sequence[Want]) -> None:
        """Replace a group's plan: bring what is absent, soonest first, and keep what is there."""
        with self._lock:
            streams = self._groups[group]
            plan: dict[JobKey, int] = {}
            for want in wants:
                key = str(streams[want.stream].directory), want.item.identity
                plan[key] = min(want.ahead, plan.get(key, want.ahead))
            for key in self._plans.replace(group, plan):
                self._unplan(group, key)
            now = time.monotonic()
            self._failed = {key: until for key, until in self._failed.items() if until > now}
            for want in wants:
                if not want.is_present:
                    self._prefetch(group, want, streams[want.stream], now)
            self._staff()
        self._protect(streams)
        self.released()

    def released(self) -> None:
        """Note that there may be room now where there was none."""
        with self._lock:
            self._queue.unpark()
            self._staff()

    def take_notice(self, group: GroupKey, stream: int) -> str | None:
        """Give what the user of a stream should be warned of, once."""
        return self._room.take_notice(self._stream(group, stream).directory)

    def taken(self, group: GroupKey, stream: int, identity: str) -> None:
        """Note that the reader of an item has locked it itself."""
        self._room.taken(self._stream(group, stream).directory, names_of(identity))

    def read(
        self, group: GroupKey, stream: int, places: Sequence[Place], edition: str, shards: Mapping[str, int]
    ) -> Future[list[list[Buffer]]]:
        """Read objects or ranges of them, each in pieces, without touching the disk."""
        settings = self._stream(group, stream)
        future: Future[list[list[Buffer]]] = Future()

        def run() -> None:
            try:
                future.set_result(self._haul.read(settings, places, edition, shards))
            except BaseException as error:  # noqa: BLE001  raised where it is waited for
                future.set_exception(error)

        threading.Thread(target=run, name="penstock-read", daemon=True).start()
        return future

    # --- Looking in -----------------------------------------------------------------------------------------

    def progress(self, ticket: Ticket) -> dict[str, Any]:
        """Say how far the request is that somebody waits for."""
        with self._lock:
            for job in self._queue.jobs.values():
                if ticket in job.tickets:
                    return {
                        "name": job.item.name,
                        "bytes": job.num_bytes_done,
                        "of": job.item.packed_bytes or job.item.raw_bytes,
                        "rate": self._counts.rate(),
                        "position": self._queue.position(job),
                        "wanted": len(self._queue),
                        "state": job.state.name.lower(),
                    }
        return {}

    def caused(self, group: GroupKey) -> dict[int, list[int]]:
        """Give the downloads and bytes that each stream of a group caused."""
        return self._counts.caused(group)

    def stats(self) -> dict[str, Any]:
        """Give counts since the start, and what goes on now."""
        with self._lock:
            return {
                **self._counts.totals(),
                "evictions": self._room.num_evictions,
                "evicted_bytes": self._room.evicted_bytes,
                "in_flight": sum(job.state is State.RUNNING for job in self._queue.jobs.values()),
                "queued": sum(job.state is not State.RUNNING for job in self._queue.jobs.values()),
                "pieces_in_flight": self._pool.num_running,
                "concurrency": self._pool.limit,
                "bytes_per_s": self._counts.rate(),
                "directories": self._room.usage(),
                "groups": len(self._groups),
            }

    def close(self) -> None:
        """Stop. What is on its way is given up; its temporary files are removed as its threads notice."""
        with self._lock:
            self._is_closed = True
            for job in self._queue.jobs.values():
                job.is_cancelled = True
                self._pool.cancel_all_of(job)
                for ticket in job.tickets:
                    ticket.future.cancel()
            for condition in (self._work, self._ended, self._clock_news):
                condition.notify_all()
        self._pool.close()
        self._haul.close()
        self._room.close_folders()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no thread works on an item any more."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while any(job.state is State.RUNNING for job in self._queue.jobs.values()):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._ended.wait(left)
        return True

    # --- Keeping the books (under the lock) -----------------------------------------------------------------

    def _stream(self, group: GroupKey, stream: int) -> CachedStream:
        with self._lock:
            try:
                return self._groups[group][stream]
            except (KeyError, IndexError) as error:
                raise CacheError("the fetcher was asked about a stream that nobody told it of") from error

    def _job(self, settings: CachedStream, item: Item) -> Job:
        key = str(settings.directory), item.identity
        return self._queue.get(key, lambda: Job(settings.directory, item, settings))

    def _prefetch(self, group: GroupKey, want: Want, settings: CachedStream, now: float) -> None:
        key = str(settings.directory), want.item.identity
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

    def _protect(self, streams: Iterable[CachedStream]) -> None:
        """Tell the directories that may have to evict something what is expected of them."""
        directories = {str(stream.directory): stream.directory for stream in streams}
        evicting = {name: directory for name, directory in directories.items() if self._room.may_evict(directory)}
        if not evicting:
            return
        with self._lock:
            merged = self._plans.ahead_in(evicting)
        for name, directory in evicting.items():
            self._room.expect(directory, merged[name])

    def _staff(self) -> None:
        """See to it that somebody drives what has come."""
        if self._is_closed:
            return
        if self._num_idle == 0 and self._num_drivers < _MOST_URGENT_DRIVERS and len(self._queue) > self._num_drivers:
            threading.Thread(target=self._drive_all, name="penstock-driver", daemon=True).start()
            self._num_drivers += 1
        self._work.notify()

    def _requeue(self, job: Job) -> None:
        """Queue a job anew. This thread may be the last to look: whoever waits for work has to hear of it."""
        job.state = State.QUEUED
        job.has_room = False
        self._queue.update(job)
        self._staff()

    # --- Driving one job after the other --------------------------------------------------------------------

    def _drive_all(self) -> None:
        while (job := self._next()) is not None:
            was_urgent = job.is_urgent
            admission: Admission | Exception | None = None
            try:
                admission = self._try(job, self._haul.admit, job)
            finally:
                self._end_admission(job, admission)
            result = None
            if isinstance(admission, Admission):
                result = self._try(job, self._haul.carry, job, admission)
            elif admission is not None:
                result = admission
            if isinstance(result, NoLongerWanted):
                if self._is_wanted_again(job):
                    continue
                result = CacheError(f"{job.item.name} is no longer wanted")
            if result is None:
                self._park(job, was_urgent=was_urgent)
            else:
                self._finish(job, result)
            del job, admission, result

    def _next(self) -> Job | None:
        """Wait for a job that may be admitted now, and for one's turn to do so."""
        with self._lock:
            self._num_idle += 1
            try:
                while not self._is_closed:
                    num_busy = self._num_drivers - self._num_idle
                    if not self._is_admitting:
                        job = self._queue.pop(only_urgent=num_busy >= _MOST_DRIVERS)
                        if job is not None:
                            self._is_admitting = True
                            return job
                    self._work.wait()
            finally:
                self._num_idle -= 1
            self._num_drivers -= 1
            return None

    def _end_admission(self, job: Job, admission: Admission | Exception | None) -> None:
        """Let the next one in."""
        with self._lock:
            self._is_admitting = False
            if isinstance(admission, Admission) and (admission.copy is not None or admission.reservation is not None):
                self._queue.grant(job)
            self._staff()
        if self._room.has_news():
            self._teller.tell()

    def _try(self, job: Job, action: Callable[..., T], *arguments: Any) -> T | Exception:
        """Give what a step of a job gives, or its error: errors go to whoever wants the item, not to this thread."""
        try:
            return action(*arguments)
        except (PenstockError, NoLongerWanted) as error:
            return error
        except Exception as error:  # noqa: BLE001
            _log.exception("fetching %s failed", job.item.name)
            return error

    def _is_wanted_again(self, job: Job) -> bool:
        """Queue a job anew that was cancelled and meanwhile found somebody who wants it."""
        with self._lock:
            if self._is_closed or not job.is_wanted:
                return False
            job.is_cancelled = False
            self._requeue(job)
            return True

    def _finish(self, job: Job, result: dict[str, Any] | Exception) -> None:
        with self._lock:
            tickets, job.tickets = job.tickets, []
            for ticket in tickets:
                self._queue.forget(ticket)
            self._queue.remove(job)
            if isinstance(result, Exception) and not job.is_cancelled:
                self._counts.add("errors")
                self._failed[job.key] = time.monotonic() + _FAILED_FOR_S
                if not tickets:
                    _log.warning("prefetching %s failed: %s", job.item.name, result)
            else:
                self._failed.pop(job.key, None)
            self._queue.unpark()
            self._staff()
            self._ended.notify_all()
        for ticket in tickets:
            if not ticket.future.set_running_or_notify_cancel():
                continue
            if isinstance(result, Exception):
                ticket.future.set_exception(result)
            else:
                ticket.future.set_result(result)

    # --- Want of room ---------------------------------------------------------------------------------------

    def _park(self, job: Job, *, was_urgent: bool) -> None:
        """Put a job aside for want of room; prefetches that would compete for it stay back too."""
        with self._lock:
            if job.is_urgent and not was_urgent:  # somebody has come to wait for it, and may take more
                self._requeue(job)
                return
            job.competes_in = self._room.bound_with(job.directory) | {job.key[0]}
            self._queue.park(job, time.monotonic())
            self._tighten(job.competes_in if job.tickets else ())
        self._teller.tell()

    def _tighten(self, directories: Iterable[str]) -> None:
        """Have everybody give up what he does not need in some directories, and see to all that wait for room."""
        self._teller.tighten(directories)
        if self._clock is None and not self._is_clock_over():
            self._clock = threading.Thread(target=self._run_clock, name="penstock-clock", daemon=True)
            self._clock.start()
        self._clock_news.notify()

    def _run_clock(self) -> None:
        """While anything waits for room, let it try again now and then, and end what has waited too long.

        Most room is announced by whoever makes it. A reader that this fetcher does not know, or a pin that is removed
        by hand, is not.
        """
        retry_at = time.monotonic() + _TICK_S
        is_over = False
        while not is_over:
            with self._lock:
                left_s = min(retry_at, self._queue.next_late_at()) - time.monotonic()
                if left_s > 0 and not self._is_clock_over():
                    self._clock_news.wait(left_s)
            if time.monotonic() >= retry_at:
                retry_at = time.monotonic() + _TICK_S
                self._retry()
            with self._lock:
                late = self._queue.take_late(time.monotonic())
                for job, _ in late:
                    self._reconsider(job)
                is_over = self._is_clock_over()
                if is_over:
                    self._clock = None
            for job, ticket in late:
                self._refuse(job, ticket)
            self._teller.tell()

    def _retry(self) -> None:
        """Evict again what could not go before, and let those try again who found no room."""
        try:
            too_full = self._room.trim()
        except Exception:  # noqa: BLE001  whoever asks for room there meets the same error; the clock has others to serve
            _log.exception("what is above a limit could not be removed")
            too_full = frozenset()
        with self._lock:
            self._too_full = too_full
            self._queue.unpark()
            self._staff()

    def _is_clock_over(self) -> bool:
        return self._is_closed or not (self._queue.is_short_of_room or self._too_full or self._teller.is_tight())

    def _refuse(self, job: Job, ticket: Ticket) -> None:
        """Tell somebody that there is no room, and why; if that cannot be found out, he hears of that."""
        if ticket.future.set_running_or_notify_cancel():
            try:
                error: Exception = self._too_small(job, ticket)
            except Exception as failure:  # noqa: BLE001  it goes to whoever waits; the clock has others to serve
                error = failure
            ticket.future.set_exception(error)

    def _too_small(self, job: Job, ticket: Ticket) -> CacheTooSmallError:
        return CacheTooSmallError(
            f"no room for {job.item.name} in {job.directory} within {ticket.timeout_s:g} s:"
            f" {self._room.describe(job.directory)}. Raise cache_limit, or keep fewer shards open at once",
            needed=job.item.raw_bytes,
        )
