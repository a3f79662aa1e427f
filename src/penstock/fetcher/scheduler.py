"""Takes what all clients ask for and expect, and has it fetched, the most urgent first, by a bounded set of threads.

It knows nothing of sockets: the fetcher process serves it to others, and stores that live in the memory of one process
run it in that process. Its lock is never held during IO, nor while a directory is waited for: requests, withdrawals
and questions are answered at once. Only `register`, `unregister` and `expect` may take their time.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.cachedir.folder import prepare_folder
from penstock.cachedir.items import names_of
from penstock.errors import CacheError, CacheTooSmallError, PenstockError
from penstock.fetcher.queue import MOST_DIRECTORIES, ItemQueue, Request
from penstock.fetcher.transfer import Transfer, transfer
from penstock.files import our_error
from penstock.threads import WorkerThreads
from penstock.wire import messages
from penstock.wire.messages import GroupUpdate, NodeCounts, Pending, Progress, Registered
from penstock.wire.quota import is_news

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.fetcher.queue import QueuedItem
    from penstock.fetcher.reads import ObjectReader, Reading
    from penstock.fetcher.transfer import Steps, Tools
    from penstock.types import Place
    from penstock.wire.item import GroupKey, Item, ItemKey, Want
    from penstock.wire.messages import Fetched, Message
    from penstock.wire.quota import OpenShardQuota
    from penstock.wire.settings import CachedStream

_log = logging.getLogger("penstock.cache")
_NOT_ANNOUNCED = "a client asked the fetcher about a stream that it had not announced"
_MANY = 1000  # entries of a plan that are looked at before others have their turn
# Most room is announced by those who make it. A reader that this fetcher does not know, or a pin that is removed by
# hand, is not, and the kernel does not say that a lock of another process is gone: so it is tried again now and then.
_RETRY_S = 1.0
_TIGHT_FOR_S = 2.0  # so long after one item found no room: others may soon not find any either
_REST_S = 2.0  # how long a thread waits for another item before it ends


@dataclass(eq=False, slots=True)
class _ClientGroup:
    """Directories of one client, and what it was told."""

    streams: tuple[CachedStream, ...]
    plan: dict[ItemKey, int] = field(default_factory=dict)  # replaced as a whole, never changed
    quota: OpenShardQuota | None = None  # what it was told last that it may keep open


class Scheduler:
    """Safe for threads. Every wish ends: with the item, with an error, or with the client that made it."""

    def __init__(self, tools: Tools, open_index: Callable[[Transfer], Steps], reader: ObjectReader) -> None:
        self._tools, self._open_index, self._reader = tools, open_index, reader
        self._rooms, self._counts, self._pool = tools.rooms, tools.counts, tools.pool
        self._lock = tools.rooms.books
        self._budget = tools.rooms.budget
        self._queue = ItemQueue()
        self._transfers: dict[ItemKey, Transfer] = {}  # those that run
        self._groups: dict[GroupKey, _ClientGroup] = {}
        self._telling = threading.RLock()  # one by one, in order; a group that is told may leave meanwhile
        self._too_full: frozenset[str] = frozenset()  # directories that hold more than a limit that came later
        self._tight: dict[str, float] = {}  # directories in which room is waited for, and until when they count
        self._threads = WorkerThreads(MOST_DIRECTORIES, "penstock-download", _REST_S)
        self._is_closed = False
        # Each of these is waited on by one kind of thread, so that a note to one never wakes another instead.
        self._all_ended = threading.Condition(self._lock)
        self._clock_news = threading.Condition(self._lock)
        self._clock: threading.Thread | None = None  # there while anything waits for room

    def do(self, client: int, message: Message[Any], on_update: Callable[[GroupUpdate], None]) -> Any:
        """Do what a client says, and return the answer, a `Pending` one, or None if there is nothing to say.

        `on_update` hears what its groups are told, and must not wait for anything.
        """
        return _ACTIONS[type(message)](self, client, message, on_update)

    # --- Clients --------------------------------------------------------------------------------------------

    def register(
        self,
        group: GroupKey,
        streams: Sequence[CachedStream],
        limit_bytes: int | None,
        on_update: Callable[[GroupUpdate], None] = lambda _: None,
    ) -> list[str]:
        """Learn of a group of directories, and return warnings to show to its user.

        `on_update` hears at once, and whenever it changes, what the group may keep open, and of each download that one
        of its streams has caused. It must not wait for anything.
        """
        risks = [prepare_folder(stream.directory, is_private=stream.is_private) for stream in streams]
        warnings = [text for texts in risks for text in texts]
        warnings += self._rooms.open(
            group,
            [stream.directory for stream in streams],
            limit_bytes,
            copies=[stream.directory for stream in streams if stream.copies_local_files],
        )
        too_full = self._rooms.trim()
        with self._lock:
            self._groups[group] = _ClientGroup(tuple(streams))
            self._counts.listeners[group] = on_update
            self._note_competitors()
            self._too_full = too_full  # it goes as soon as it is not used
            self._tighten(too_full)
        self._tell_quotas()
        return warnings

    def unregister(self, group: GroupKey) -> None:
        """Forget a group, its plan and its requests."""
        with self._lock:
            known = self._groups.pop(group, _ClientGroup(()))
            self._counts.listeners.pop(group, None)
            for key in known.plan:
                self._queue.expect_no_more(group, key)
            waiting = [request for queued in self._queue.items.values() for request in queued.requests]
            for request in (request for request in waiting if request.group == group):
                self.withdraw(request)
            left = {str(stream.directory) for other in self._groups.values() for stream in other.streams}
            self._cancel(running for key, running in self._transfers.items() if key[0] not in left)
            self._budget.close(group)
            self._note_competitors()
        self._protect(known.streams)
        self.released()
        self._tell_quotas()

    def drop_client(self, client: int) -> None:
        """Forget all groups of a client that left."""
        with self._lock:
            groups = [group for group in self._groups if group[0] == client]
        for group in groups:
            self.unregister(group)

    # --- Wishes ---------------------------------------------------------------------------------------------

    def ask(self, group: GroupKey, stream: int, item: Item, *, is_urgent: bool = True) -> Request:
        """Request an item; the future of the request gives what was done, or the error."""
        settings = self._stream(group, stream)
        key = str(settings.directory), item.identity
        request = Request(group, stream, is_urgent, settings.timeout_s, key, time.monotonic(), Future())
        with self._lock:
            self._queue.ask(request, settings.directory, item, settings)
            self._wake()
        return request

    def withdraw(self, request: Request) -> None:
        """Take a request back."""
        with self._lock:
            self._queue.withdraw(request)
            request.future.cancel()

    def expect(self, group: GroupKey, wants: Sequence[Want]) -> None:
        """Replace a group's plan: bring what is absent, soonest first, and keep what is there."""
        plan: dict[ItemKey, int] = {}
        try:
            known = self._groups[group]
            streams = known.streams
            directories = [str(stream.directory) for stream in streams]
            for want in wants:
                key = directories[want.stream], want.item.identity
                plan[key] = min(want.ahead, plan.get(key, want.ahead))
        except (KeyError, IndexError) as error:
            raise CacheError(_NOT_ANNOUNCED) from error
        with self._lock:
            old, known.plan = known.plan, plan
            for key in old.keys() - plan.keys():
                self._queue.expect_no_more(group, key)
        absent = (want for want in wants if not want.is_present)
        while some := list(islice(absent, _MANY)):
            with self._lock:
                if self._groups.get(group) is not known:
                    return
                now = time.monotonic()
                for want in some:
                    self._queue.expect((group, want.stream), want.ahead, want.item, streams[want.stream], now)
                self._wake()
        self._protect(streams)
        self.released()

    def released(self) -> None:
        """Note that there may be room now where there was none."""
        with self._lock:
            self._queue.retry_waiting()
            self._wake()

    def taken(self, group: GroupKey, stream: int, identity: str) -> None:
        """Note that the reader of an item has locked it itself."""
        directory = self._stream(group, stream).directory
        with self._lock:
            self._budget.is_taken(str(directory), names_of(identity))

    def read(
        self, group: GroupKey, stream: int, places: Sequence[Place], edition: str, shards: Mapping[str, int]
    ) -> Reading:
        """Read objects or ranges of them, each in pieces, without touching the disk."""
        return self._reader.start(self._stream(group, stream), places, edition, shards)

    def _fetch(self, client: int, fetch: messages.Fetch, _: object) -> Pending:
        request = self.ask((client, fetch.group), fetch.stream, fetch.item, is_urgent=fetch.is_urgent)
        return Pending(request.future, partial(self.progress, request), partial(self.withdraw, request))

    def _read(self, client: int, read: messages.Read, _: object) -> Pending:
        reading = self.read((client, read.group), read.stream, read.places, read.edition, read.shards)
        return Pending(reading.future, partial(self.progress_of_read, reading))

    # --- Looking in -----------------------------------------------------------------------------------------

    def progress(self, request: Request) -> Progress:
        """Return how far a request is that is waited for."""
        with self._lock:
            queued, running = self._queue.items.get(request.key), self._transfers.get(request.key)
            if queued is None or request not in queued.requests:
                return Progress()
            total = queued.item.packed_bytes or queued.item.raw_bytes if running is None else running.total_bytes
            done = 0 if running is None else running.num_bytes_done
            return Progress(
                name=queued.item.name,
                num_bytes=min(done, total) if total else done,  # what was cut or damaged came more than once
                total_bytes=total,
                bytes_per_s=self._counts.rate(),
                position=self._queue.position(queued),
                num_wanted=len(self._queue),
                state=queued.state.name.lower(),
                reason="" if running is None else running.retry_reason,
            )

    def progress_of_read(self, reading: Reading) -> Progress:
        """Return how far a read is; one whose store hangs has failed then."""
        self._pool.end_hanging(reading.pieces)
        return Progress(
            name="ranges",
            num_bytes=min(reading.num_bytes_done, reading.total_bytes),
            total_bytes=reading.total_bytes,
            bytes_per_s=self._counts.rate(),
            num_wanted=1,
            state="reading",
            reason=reading.retry_reason,
        )

    def stats(self) -> NodeCounts:
        """Return counts since the start, and what goes on now."""
        with self._lock:
            return NodeCounts(
                **self._counts.totals(),
                evictions=self._rooms.num_evictions,
                evicted_bytes=self._rooms.evicted_bytes,
                in_flight=self._queue.num_running,
                queued=len(self._queue) - self._queue.num_running,
                pieces_in_flight=self._pool.num_running,
                concurrency=self._pool.limit,
                bytes_per_s=self._counts.rate(),
                directories=self._budget.usage(),
                groups=len(self._groups),
            )

    def close(self) -> None:
        """Stop. What is being fetched is given up; its temporary files are removed as its threads notice."""
        with self._lock:
            self._cancel(self._transfers.values())
            for queued in self._queue.items.values():
                for request in queued.requests:
                    request.future.cancel()
            self._is_closed = True
            self._clock_news.notify()
        self._threads.shutdown(cancel_futures=False)
        self._pool.close()
        self._rooms.close()

    def join(self, timeout_s: float) -> bool:
        """Wait until no item is being fetched, and return True if that is so."""
        with self._all_ended:
            return self._all_ended.wait_for(lambda: not self._transfers, timeout_s)

    # --- Keeping the books ----------------------------------------------------------------------------------

    def _stream(self, group: GroupKey, stream: int) -> CachedStream:
        with self._lock:
            try:
                return self._groups[group].streams[stream]
            except (KeyError, IndexError) as error:
                raise CacheError(_NOT_ANNOUNCED) from error

    def _cancel(self, transfers: Iterable[Transfer]) -> None:
        for running in list(transfers):
            running.is_cancelled = True
            self._pool.cancel_all_of(running)

    def _protect(self, streams: Iterable[CachedStream]) -> None:
        """Note in the directories that may have to evict something what is expected. Without the lock."""
        evicting = {str(stream.directory) for stream in streams if self._rooms.may_evict(stream.directory)}
        if not evicting:
            return
        with self._lock:
            plans = [group.plan for group in self._groups.values()]
        ahead: dict[str, dict[str, int]] = {place: {} for place in evicting}
        for plan in plans:
            for (place, identity), batches in plan.items():
                if place in ahead:
                    for name in names_of(identity):
                        ahead[place][name] = min(batches, ahead[place].get(name, batches))
        for place, batches_of in ahead.items():
            with self._lock:
                self._budget.shelves[place].order.expect(batches_of)

    def _note_competitors(self) -> bool:
        """Learn anew which directories share room, and return True if a disk has become full, or has room again."""
        has_news, self._budget.has_news = self._budget.has_news, False
        self._queue.competitors = self._budget.competitors()
        return has_news

    # --- Bringing items -------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Have all items brought that may begin now, each by a thread. With the lock."""
        while not self._is_closed and (queued := self._queue.take(len(self._transfers))) is not None:
            self._transfers[queued.key] = Transfer(queued)
            self._threads.submit(self._serve, queued).add_done_callback(Future.result)  # which logs what fails there

    def _end(self, queued: QueuedItem) -> None:
        del self._transfers[queued.key]
        self._all_ended.notify_all()

    def _serve(self, queued: QueuedItem) -> None:
        """Bring one item, and answer those who wait for it. Errors go to them, not to this thread."""
        running, was_urgent = self._transfers[queued.key], queued.demand.is_urgent
        result: Fetched | Exception | None
        try:
            result = self._bring(queued, running)
        except (PenstockError, CancelledError) as error:
            result = error
        except (OSError, UnicodeEncodeError) as error:  # of what lies beside it, too: tables, locks
            result = our_error(error, queued.directory / running.name)
            result.__cause__ = error
        except Exception as error:  # noqa: BLE001
            _log.exception("fetching %s failed", queued.item.name)
            result = error
        if isinstance(result, CancelledError):
            if self._is_wanted_again(queued):
                return
            result = CacheError(f"{queued.item.name} is no longer needed")
        if result is None:
            self._wait_for_space(queued, was_urgent=was_urgent)
        else:
            self._finish(queued, running, result)

    def _bring(self, queued: QueuedItem, running: Transfer) -> Fetched | None:
        """Bring an item or, if there is no room for it now, return None."""
        steps = self._open_index(running) if queued.item.is_index else transfer(self._tools, running)
        result = None
        try:
            try:
                next(steps)  # alone with its directories, to decide whether it may come now
            finally:
                self._end_admission(queued, running)
            next(steps)
        except StopIteration as end:
            result = end.value
        return result

    def _end_admission(self, queued: QueuedItem, running: Transfer) -> None:
        with self._lock:
            self._queue.end_admission(queued, has_room=running.has_room)
            has_news = self._budget.has_news and self._note_competitors()
            self._wake()
        if has_news:
            self._tell_quotas()

    def _put_back(self, queued: QueuedItem) -> None:
        """Queue an item anew."""
        self._end(queued)
        self._queue.put_back(queued)
        self._wake()

    def _is_wanted_again(self, queued: QueuedItem) -> bool:
        """Queue an item anew that was cancelled and meanwhile came to be wanted."""
        with self._lock:
            if self._is_closed or not queued.is_wanted:
                return False
            self._put_back(queued)
            return True

    def _finish(self, queued: QueuedItem, running: Transfer, result: Fetched | Exception) -> None:
        has_failed = isinstance(result, Exception) and not running.is_cancelled
        with self._lock:
            self._end(queued)
            requests = self._queue.finish(queued, time.monotonic(), has_failed=has_failed)
            self._wake()
        if has_failed:
            self._counts.add("errors")
            if not requests:
                _log.warning("prefetching %s failed: %s", queued.item.name, result)
        for request in requests:
            if not request.future.set_running_or_notify_cancel():
                continue
            notice = self._rooms.take_notice(queued.directory)
            if isinstance(result, Exception):  # which says the same, and more
                request.future.set_exception(result)
            else:
                request.future.set_result(replace(result, warnings=(*result.warnings, notice)) if notice else result)

    # --- Want of room ---------------------------------------------------------------------------------------

    def _wait_for_space(self, queued: QueuedItem, *, was_urgent: bool) -> None:
        """Put an item aside for want of room; prefetches that would compete for it stay back too."""
        with self._lock:
            if queued.is_urgent and not was_urgent:  # a reader has come to wait for it, and may take more
                self._put_back(queued)
                return
            self._end(queued)
            self._note_competitors()
            self._queue.wait_for_space(queued, time.monotonic())
            self._tighten(queued.competes_in if queued.requests else ())
            self._wake()
        self._tell_quotas()

    def _tighten(self, directories: Iterable[str]) -> None:
        """Have all clients give up what they do not need in some directories, and see to all that wait for room."""
        self._tight |= dict.fromkeys(directories, time.monotonic() + _TIGHT_FOR_S)
        if self._clock is None and self._is_short_of_room():
            self._clock = threading.Thread(target=self._watch_room, name="penstock-clock", daemon=True)
            self._clock.start()
        self._clock_news.notify()

    def _is_short_of_room(self) -> bool:
        now = time.monotonic()
        self._tight = {name: until for name, until in self._tight.items() if until > now}
        return not self._is_closed and bool(self._queue.is_short_of_room or self._too_full or self._tight)

    def _tell_quotas(self) -> None:
        """Have all groups told for which it has changed what they may keep open. Without the lock."""
        with self._telling:
            with self._lock:
                now = time.monotonic()
                quotas = self._budget.shares([name for name, until in self._tight.items() if until > now])
                news = []
                for key, group in self._groups.items():
                    if key in quotas and is_news(group.quota, quotas[key]):
                        group.quota = quotas[key]
                        news.append((key, group, quotas[key]))
            for key, group, quota in news:
                on_update = self._counts.listeners.get(key)
                if on_update is None or self._groups.get(key) is not group or group.quota != quota:
                    continue
                try:
                    on_update(GroupUpdate(key[1], quota))
                except Exception:  # noqa: BLE001  its own affair: others are still to be told
                    _log.exception("could not tell a client how much it may keep open")

    def _watch_room(self) -> None:
        """While anything waits for room, let it try again now and then, and end what has waited too long."""
        retry_at = time.monotonic() + _RETRY_S
        is_over = False
        while not is_over:
            with self._clock_news:
                left_s = min(retry_at, self._queue.next_late_at()) - time.monotonic()
                if left_s > 0 and self._is_short_of_room():
                    self._clock_news.wait(left_s)
            if time.monotonic() >= retry_at:
                retry_at = time.monotonic() + _RETRY_S
                self._retry()
            with self._lock:
                late = self._queue.take_late(time.monotonic())
                for queued, _ in late:
                    self._queue.reconsider(queued)
            for queued, request in late:
                self._refuse(queued, request)
            self._tell_quotas()
            with self._lock:
                is_over = not self._is_short_of_room()
                if is_over:
                    self._clock = None

    def _retry(self) -> None:
        """Evict again what could not go before, and let those try again who found no room."""
        try:
            too_full = self._rooms.trim()
        except Exception:  # noqa: BLE001  requests for room there meet the same error; the clock has others to serve
            _log.exception("could not remove shards to get below a limit")
            too_full = frozenset()
        with self._lock:
            self._too_full = too_full
            self.released()

    def _refuse(self, queued: QueuedItem, request: Request) -> None:
        """Answer a request that there is no room, and why; if that cannot be found out, it hears of that."""
        if request.future.set_running_or_notify_cancel():
            try:
                error: Exception = CacheTooSmallError(
                    f"no room for {queued.item.name} in {queued.directory} within {request.timeout_s:g} s:"
                    f" {self._rooms.describe(queued.directory)}. Raise cache_limit, or keep fewer shards open at"
                    " once",
                    needed=queued.item.raw_bytes,
                )
            except Exception as failure:  # noqa: BLE001  it goes to the one who waits; the clock has others to serve
                error = failure
            request.future.set_exception(error)


_ACTIONS: dict[type[Message[Any]], Callable[[Scheduler, int, Any, Callable[[GroupUpdate], None]], Any]] = {
    messages.Released: lambda self, *_: self.released(),
    messages.LeaseAcquired: lambda self, client, it, _: self.taken((client, it.group), it.stream, it.identity),
    messages.GetStats: lambda self, *_: self.stats(),
    messages.GetStreamCounts: lambda _, __, it, ___: GroupUpdate(it.group),  # all was told already
    messages.Fetch: Scheduler._fetch,
    messages.Read: Scheduler._read,
    messages.Register: lambda self, client, it, on_update: Registered(
        tuple(self.register((client, it.group), it.streams, it.limit_bytes, on_update))
    ),
    messages.Unregister: lambda self, client, it, _: self.unregister((client, it.group)),
    messages.Expect: lambda self, client, it, _: self.expect((client, it.group), it.wants),
}
