"""Hands queued items to threads, the most urgent first, and sees to those for which there is no room.

It shares the lock and the queue of the scheduler. The lock is held neither during IO nor while a folder is waited for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import CacheError, CacheTooSmallError, PenstockError
from penstock.fetcher.downloader import Admission, Downloader, NoLongerWanted
from penstock.fetcher.queue import Demand, State, Transfer
from penstock.files import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.fetcher.budget import DiskBudget
    from penstock.fetcher.counts import FetcherCounts
    from penstock.fetcher.queue import ItemKey, ItemQueue, QueuedItem, Request
    from penstock.fetcher.share_board import ShareBoard
    from penstock.wire.messages import Fetched

T = TypeVar("T")

_log = logging.getLogger("penstock.cache")
# How many items are on their way at once: enough for as many pieces as are read at once, and some that are unpacked.
_MOST_WORKERS = 10  # for what is expected
_MOST_URGENT_WORKERS = 12  # when somebody waits
# One more for each directory that none of them works for: a disk that hangs holds up nobody else.
_MOST_DIRECTORIES = 64
_FAILED_FOR_S = 30.0  # a prefetch that failed is not tried again so soon, unless somebody asks
# Most room is announced by whoever makes it. A reader that this fetcher does not know, or a pin that is removed by
# hand, is not, and the kernel tells nobody that a lock of another process is gone: so it is tried again now and then.
_RETRY_S = 1.0


class Dispatcher:
    """Called by the scheduler with its lock held, unless it says otherwise."""

    def __init__(
        self,
        lock: Any,
        queue: ItemQueue,
        *,
        downloader: Downloader,
        budget: DiskBudget,
        shares: ShareBoard,
        counts: FetcherCounts,
    ) -> None:
        self._lock = lock
        self._queue = queue
        self._downloader = downloader
        self._budget = budget
        self._shares = shares
        self._counts = counts
        self._failed: dict[ItemKey, float] = {}  # until when
        self._too_full: frozenset[str] = frozenset()  # directories that hold more than a limit that came later
        # Where room is being made: one item at a time, so that what is needed later never takes the room of the sooner.
        self._admitting: set[str] = set()
        self._is_closed = False
        # Each of these is waited on by one kind of thread, so that a note to one never wakes another instead.
        self._work_news = threading.Condition(lock)
        self._clock_news = threading.Condition(lock)
        self._workers: set[threading.Thread] = set()  # they come when they are needed, and stay until `close`
        self._running: Counter[str] = Counter()  # how many of them work for a directory
        self.num_idle = 0
        self._clock: threading.Thread | None = None  # there while anything waits for room

    def wake(self) -> None:
        """See to it that somebody looks at what has come to the queue."""
        if self._is_closed or not self._queue.is_any_waiting():
            return
        if self.num_idle == 0 and self._may_start_another():
            thread = threading.Thread(target=self._work, name="penstock-download", daemon=True)
            self._workers.add(thread)
            thread.start()
        self._work_news.notify()

    def _may_start_another(self) -> bool:
        num_workers = len(self._workers)
        if num_workers < _MOST_URGENT_WORKERS:
            return num_workers < len(self._queue)
        return num_workers < _MOST_DIRECTORIES and not self._queue.urgent_directories() <= self._running.keys()

    def has_just_failed(self, key: ItemKey) -> bool:
        """Tell whether an item need not be tried again so soon."""
        return bool(self._failed) and self._failed.get(key, 0.0) > time.monotonic()

    def note_too_full(self, directories: frozenset[str]) -> None:
        """Note where more is than a limit allows that came later: it goes as soon as nobody uses it."""
        self._too_full = directories
        self._tighten(directories)

    def close(self) -> None:
        """Let each thread end when it is done with what it does."""
        self._is_closed = True
        self._work_news.notify_all()
        self._clock_news.notify()

    def join(self, timeout_s: float) -> bool:
        """Without the lock: wait until all that fetch have ended, and tell whether they have."""
        deadline = time.monotonic() + timeout_s
        with self._work_news:
            while self._workers and (left_s := deadline - time.monotonic()) > 0:
                self._work_news.wait(left_s)
            return not self._workers

    def _requeue(self, queued: QueuedItem) -> None:
        """Queue an item anew. This thread may be the last to look: whoever waits for work has to hear of it."""
        queued.state = State.QUEUED
        queued.has_room = False
        queued.transfer = None
        self._queue.update(queued)
        self.wake()

    # --- Fetching one item after the other ------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (work := self._next()) is not None:
                try:
                    self._fetch(*work)
                finally:
                    self._end_work(work[0].key[0])
                del work  # it may hold much memory, and the next may be long in coming
        finally:
            with self._lock:
                self._workers.discard(threading.current_thread())
                self._work_news.notify_all()

    def _next(self) -> tuple[QueuedItem, Transfer, bool] | None:
        """Wait for an item that may be admitted now; None: there will be no more."""
        with self._work_news:
            work = None
            self.num_idle += 1
            try:
                while not self._is_closed and (work := self._take(len(self._workers) - self.num_idle)) is None:
                    self._work_news.wait()
            finally:
                self.num_idle -= 1
            if work is not None:
                self.wake()  # there may be more that can begin now
            return work

    def _end_work(self, directory: str) -> None:
        with self._lock:
            self._running[directory] -= 1
            self._running += Counter()  # without those that have none
            self.wake()

    def _take(self, num_busy: int) -> tuple[QueuedItem, Transfer, bool] | None:
        """Give an item that may be admitted now; where it competes for room, nobody else is admitted meanwhile."""
        known: dict[str, frozenset[str]] = {}

        def competing(queued: QueuedItem) -> frozenset[str]:
            name = queued.key[0]
            if name not in known:
                known[name] = self._budget.bound_with(queued.directory) | {name}
            return known[name]

        is_crowded, is_full = num_busy >= _MOST_WORKERS, num_busy >= _MOST_URGENT_WORKERS
        busy = self._admitting | self._running.keys() if is_full else self._admitting
        queued = self._queue.pop(only_urgent=is_crowded, busy=busy, competing=competing)
        if queued is None:
            return None
        self._running[queued.key[0]] += 1
        queued.competes_in = competing(queued)
        self._admitting |= queued.competes_in
        transfer = Transfer(queued.directory, queued.item, queued.stream, partial(self._demand, queued))
        transfer.rank = queued.rank()
        queued.transfer = transfer
        return queued, transfer, queued.is_urgent

    def _demand(self, queued: QueuedItem) -> Demand:
        with self._lock:
            return queued.demand()

    def _fetch(self, queued: QueuedItem, transfer: Transfer, was_urgent: bool) -> None:
        admission: Admission | Exception | None = None
        result: Fetched | Exception | None
        try:
            admission = self._try(transfer, partial(self._downloader.admit, transfer))
        finally:
            self._end_admission(queued, admission)
        if isinstance(admission, Admission):
            result = self._try(transfer, partial(self._downloader.fetch, transfer, admission))
        else:
            result = admission
        if isinstance(result, NoLongerWanted):
            if self._is_wanted_again(queued):
                return
            result = CacheError(f"{queued.item.name} is no longer needed")
        if result is None:
            self._park(queued, was_urgent=was_urgent)
        else:
            self._finish(queued, result)

    def _try(self, transfer: Transfer, step: Callable[[], T]) -> T | Exception:
        """Give what a step gives, or its error: errors go to whoever wants the item, not to this thread."""
        try:
            with translated(transfer.directory / transfer.item.name):  # of what lies beside it: tables, locks
                return step()
        except (PenstockError, NoLongerWanted) as error:
            return error
        except Exception as error:  # noqa: BLE001
            _log.exception("fetching %s failed", transfer.item.name)
            return error

    def _end_admission(self, queued: QueuedItem, admission: Admission | Exception | None) -> None:
        """Let the next one in."""
        with self._lock:
            self._admitting -= queued.competes_in
            if isinstance(admission, Admission) and (admission.copy is not None or admission.reservation is not None):
                self._queue.grant(queued)
            self.wake()
        if self._budget.has_news():
            self._shares.tell()

    def _is_wanted_again(self, queued: QueuedItem) -> bool:
        """Queue an item anew that was cancelled and meanwhile found somebody who wants it."""
        with self._lock:
            if self._is_closed or not queued.is_wanted:
                return False
            self._requeue(queued)
            return True

    def _finish(self, queued: QueuedItem, result: Fetched | Exception) -> None:
        with self._lock:
            was_cancelled = queued.transfer is not None and queued.transfer.is_cancelled
            requests, queued.requests, queued.transfer = queued.requests, [], None
            for request in requests:
                self._queue.forget(request)
            self._queue.remove(queued)
            if isinstance(result, Exception) and not was_cancelled:
                self._counts.add("errors")
                now = time.monotonic()
                self._failed = {key: until for key, until in self._failed.items() if until > now}
                self._failed[queued.key] = now + _FAILED_FOR_S
                if not requests:
                    _log.warning("prefetching %s failed: %s", queued.item.name, result)
            else:
                self._failed.pop(queued.key, None)
            self._queue.unpark()
            self.wake()
        for request in requests:
            if not request.future.set_running_or_notify_cancel():
                continue
            if isinstance(result, Exception):
                request.future.set_exception(result)
            else:
                request.future.set_result(result)

    # --- Want of room ---------------------------------------------------------------------------------------

    def _park(self, queued: QueuedItem, *, was_urgent: bool) -> None:
        """Put an item aside for want of room; prefetches that would compete for it stay back too."""
        with self._lock:
            if queued.is_urgent and not was_urgent:  # somebody has come to wait for it, and may take more
                self._requeue(queued)
                return
            queued.transfer = None
            queued.competes_in = self._budget.bound_with(queued.directory) | {queued.key[0]}
            self._queue.park(queued, time.monotonic())
            self._tighten(queued.competes_in if queued.requests else ())
        self._shares.tell()

    def _tighten(self, directories: Iterable[str]) -> None:
        """Have everybody give up what he does not need in some directories, and see to all that wait for room."""
        self._shares.tighten(directories)
        if self._clock is None and self._is_anybody_short_of_room():
            self._clock = threading.Thread(target=self._watch_room, name="penstock-clock", daemon=True)
            self._clock.start()
        self._clock_news.notify()

    def _is_anybody_short_of_room(self) -> bool:
        return not self._is_closed and bool(self._queue.is_short_of_room or self._too_full or self._shares.is_tight())

    def _watch_room(self) -> None:
        """While anything waits for room, let it try again now and then, and end what has waited too long."""
        retry_at = time.monotonic() + _RETRY_S
        is_over = False
        while not is_over:
            with self._clock_news:
                left_s = min(retry_at, self._queue.next_late_at()) - time.monotonic()
                if left_s > 0 and self._is_anybody_short_of_room():
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
            self._shares.tell()
            with self._lock:
                is_over = not self._is_anybody_short_of_room()
                if is_over:
                    self._clock = None

    def _retry(self) -> None:
        """Evict again what could not go before, and let those try again who found no room."""
        try:
            too_full = self._budget.trim()
        except Exception:  # noqa: BLE001  whoever asks for room there meets the same error; the clock has others to serve
            _log.exception("could not remove shards to get below a limit")
            too_full = frozenset()
        with self._lock:
            self._too_full = too_full
            self._queue.unpark()
            self.wake()

    def _refuse(self, queued: QueuedItem, request: Request) -> None:
        """Tell somebody that there is no room, and why; if that cannot be found out, he hears of that."""
        if request.future.set_running_or_notify_cancel():
            try:
                error: Exception = CacheTooSmallError(
                    f"no room for {queued.item.name} in {queued.directory} within {request.timeout_s:g} s:"
                    f" {self._budget.describe(queued.directory)}. Raise cache_limit, or keep fewer shards open at"
                    " once",
                    needed=queued.item.raw_bytes,
                )
            except Exception as failure:  # noqa: BLE001  it goes to whoever waits; the clock has others to serve
                error = failure
            request.future.set_exception(error)
