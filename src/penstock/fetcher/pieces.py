"""Threads that read pieces: as many at once as pays, most urgent first, within a bound of memory."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.cachedir.layout import place_of
from penstock.errors import StoreTimeoutError
from penstock.fetcher.counts import FetcherCounts
from penstock.storage.base import (
    CopiesPieces,
    HasCommits,
    HasQueries,
    LearnsRanges,
    ReadsTogether,
    open_store,
    shown_url,
    url_scheme,
)
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.errors import StoreError
    from penstock.storage.base import Store
    from penstock.wire.settings import CachedStream

T = TypeVar("T")

_MAX_BYTES = 160 << 20
SMALL_BYTES = 512 << 10
_MOST_THREADS = 256  # only if pieces hang: each hanging one is given up on and replaced
_STRETCH_S = 1.0
_REST_S = 2.0  # how long a thread waits for more work before it ends
# How many are read at once, each by a thread of its own; and how many of those are large.
MOST_AT_ONCE = 24  # as long as none is large: whole shards have threads of their own besides
_MOST_BESIDE_LARGE = 16
LOWEST = 4
HIGHEST = 14  # small ones, for which a reader stands still, need not wait until a large one ends
_BETTER = 1.05
_WORSE = 0.95
# A store ends its tries by itself, and knows the cause better than we do. What hangs in spite of that shows no sign of
# life for longer than any try or pause of a store, each of which is shorter than so many times its patience.
_HANGS_AFTER = 3.0


# --- Stores, each opened once for all: how often it is asked again, and for how long --------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHandle:
    """A store, which tries again by itself, and how patiently it is asked."""

    store: Store
    url: str = field(repr=False)
    name: str = ""  # what tells its data from others': place and endpoint (another one, another place), no secrets
    retry: int = 2
    timeout_s: float = 60.0  # without a single byte

    def where(self, key: str) -> str:
        """Name an object in messages."""
        return join_url(_shown_root(self.url), key)

    @property
    def has_ranges(self) -> bool:
        """Whether parts of an object can be had without all that comes before them, as far as is known."""
        return not isinstance(self.store, LearnsRanges) or self.store.ranges.are_sent

    @property
    def reads_together(self) -> bool:
        """Whether several ranges of an object can be had by one call."""
        return self.has_ranges and isinstance(self.store, ReadsTogether) and self.store.reads_together

    @property
    def is_read_in_one(self) -> bool:
        """Whether an object is best read at once: its server sends no pieces, and what comes goes straight to disk."""
        return not self.has_ranges and isinstance(self.store, CopiesPieces)

    @property
    def has_queries(self) -> bool:
        """Whether files were named with queries of their own: a request for any other would be refused."""
        return isinstance(self.store, HasQueries) and self.store.has_queries

    def revision(self) -> str | None:
        """Return the commit that is read, if the store keeps commits."""
        return self.store.commit() if isinstance(self.store, HasCommits) else None


@lru_cache(64)
def _shown_root(url: str) -> str:
    """Return a URL as it may be shown; it is needed for each piece."""
    return shown_url(url)


def is_near(handle: StoreHandle) -> bool:
    """Return True if a store answers a question at once: nothing is gained by asking it less."""
    return url_scheme(handle.url) in (None, "file", "memory")


class StoreHandles:
    """Opens stores, and keeps them open. Safe for threads."""

    def __init__(self, hooks: RetryHooks) -> None:
        self._lock = threading.Lock()
        self._origins: dict[str, StoreHandle] = {}
        self._hooks = hooks

    def of(self, stream: CachedStream) -> StoreHandle:
        """Return the handle of a stream."""
        store, options = stream.store, stream.store.options
        known = f"{stream.retry} {stream.timeout_s} {store.url} {sorted(options.items(), key=str)!r}"
        with self._lock:
            handle = self._origins.get(known)
            if handle is None:
                endpoint = options.get("endpoint")
                handle = self._origins[known] = StoreHandle(
                    store=open_store(store, retry=RetryPolicy.of(stream.retry, stream.timeout_s), hooks=self._hooks),
                    url=store.url,
                    name=place_of(store.url) + (f" at {shown_url(str(endpoint))}" if endpoint else ""),
                    retry=stream.retry,
                    timeout_s=stream.timeout_s,
                )
            return handle


# --- Who reads what -----------------------------------------------------------------------------------------


class PieceOwner:
    """On whose behalf pieces are read. Safe for threads."""

    def __init__(self, *rank: float) -> None:
        self._rank = rank
        self.num_bytes_done = 0
        self.retry_reason = ""  # why its store is asked again; empty once something comes
        self._lock = threading.Lock()

    @property
    def rank(self) -> tuple[float, ...]:
        """How urgent it is now, smaller first."""
        return self._rank

    def add_bytes(self, num_bytes: int) -> None:
        """Count bytes as they come."""
        with self._lock:
            self.num_bytes_done += num_bytes
        self.retry_reason = ""


@dataclass(eq=False)
class RangeRead:
    """One read, of no more than a piece of an object."""

    owner: PieceOwner
    num_bytes: int
    action: Callable[[], Any]
    handle: StoreHandle
    key: str
    future: Future[Any] = field(default_factory=Future, init=False)
    num_arrived: int = field(default=0, init=False)  # bytes that its store has told of
    heard_at: float | None = field(default=None, init=False)  # when it began, then its last sign of life
    is_given_up: bool = field(default=False, init=False)

    @property
    def where(self) -> str:
        """The object, in messages."""
        return self.handle.where(self.key)

    @property
    def is_small(self) -> bool:
        """Whether it takes no time but that of asking."""
        return self.num_bytes <= SMALL_BYTES

    def left_s(self) -> float:
        """Return after how long without a sign of life it hangs, at the earliest; it cannot before it begins."""
        heard_at = time.monotonic() if self.heard_at is None else self.heard_at
        return heard_at + _HANGS_AFTER * self.handle.timeout_s - time.monotonic()

    def hangs(self) -> bool:
        """Return True if its store has shown no sign of life for too long."""
        return self.left_s() <= 0 and not self.future.done()

    def timeout_error(self) -> StoreTimeoutError:
        """Return the error that says so."""
        return StoreTimeoutError(
            f"{self.where}: no answer to a request for {self.num_bytes} bytes within"
            f" {_HANGS_AFTER * self.handle.timeout_s:g} s: check that the store can be reached, or raise"
            " download_timeout"
        )


class PiecePool:
    """Runs pieces. Threads come when they are needed and leave soon after."""

    def __init__(self, counts: FetcherCounts | None = None) -> None:
        self._counts = counts or FetcherCounts()
        self._changed = threading.Condition()
        self._pending: dict[PieceOwner, deque[RangeRead]] = {}
        self._concurrency = Concurrency()
        self._started: set[RangeRead] = set()
        self._num_small = 0  # of those
        self._running_bytes = 0
        self._num_threads = 0
        self._num_stuck = 0
        self._is_closed = False
        self._given_up = threading.Condition()  # for those who pause before their store tries again
        self._stretch_begin = time.monotonic()
        self._stretch_bytes = 0
        self._was_full = False
        self._mine = threading.local()  # the piece that a thread reads

    @property
    def limit(self) -> int:
        """The number of pieces read at once."""
        return self._concurrency.limit

    @property
    def num_running(self) -> int:
        """The number of pieces being read now."""
        return len(self._started)

    def submit(
        self, owner: PieceOwner, num_bytes: int, handle: StoreHandle, key: str, action: Callable[[], Any]
    ) -> RangeRead:
        """Queue a read of an object of a store."""
        piece = RangeRead(owner, num_bytes, action, handle, key)
        with self._changed:
            if self._is_closed:
                _tell_cancelled(piece.future)
                return piece
            self._pending.setdefault(owner, deque()).append(piece)
            self._staff()
            self._changed.notify()
        return piece

    def wait(self, pieces: Sequence[RangeRead]) -> list[Any]:
        """Wait for all and give their results; the first failure ends the others and is raised."""
        try:
            pending = {piece.future for piece in pieces}
            while pending:
                lefts = [piece.left_s() for piece in pieces if not piece.future.done()]
                done, pending = wait(pending, max(0.0, min(lefts, default=0.0)), FIRST_EXCEPTION)
                for future in done:
                    future.result()
                for piece in pieces:
                    if piece.hangs():
                        raise piece.timeout_error()
            return [piece.future.result() for piece in pieces]
        except BaseException:
            self.cancel(pieces)
            raise

    def end_hanging(self, pieces: Sequence[RangeRead]) -> None:
        """Drop those that show no sign of life, which are not waited for here."""
        for piece in pieces:
            if piece.hangs():
                with self._changed:
                    is_running = piece in self._started
                    self._give_up(piece)
                if is_running:
                    piece.future.set_exception(piece.timeout_error())

    def hooks(self) -> RetryHooks:
        """Return what a store needs that is asked by the threads of this pool."""
        return RetryHooks(sleep=self.pause, on_retry=self.note_retry, on_bytes=self.note_bytes, on_life=self.note_life)

    def note_bytes(self, num_bytes: int) -> None:
        """Hear from the store that reads a piece in this thread how many bytes came just now."""
        piece = self._piece_here()
        if piece is not None:
            self._count(piece, num_bytes)

    def _count(self, piece: RangeRead, num_bytes: int) -> None:
        piece.num_arrived += num_bytes
        piece.owner.add_bytes(num_bytes)
        self._counts.add_arrived(num_bytes)

    def note_life(self) -> None:
        """Hear from the store that reads a piece in this thread: a byte came, or it tries again."""
        piece = self._piece_here()
        if piece is not None:
            piece.heard_at = time.monotonic()

    def note_retry(self, error: StoreError) -> None:
        """Hear from the store that reads a piece in this thread why it has to try again."""
        self._counts.add("retries")
        piece = self._piece_here()
        if piece is not None:
            piece.owner.retry_reason = str(error).removeprefix(f"{piece.where}: ")

    def pause(self, seconds: float) -> None:
        """Wait before the store tries again in this thread; who gave the piece up ends the wait, and its tries."""
        piece = self._piece_here()
        with self._given_up:
            if self._given_up.wait_for(lambda: self._is_closed if piece is None else piece.is_given_up, seconds):
                raise CancelledError

    def _piece_here(self) -> RangeRead | None:
        return getattr(self._mine, "piece", None)

    def cancel(self, pieces: Sequence[RangeRead]) -> None:
        """Forget pieces that have not begun, and return up on those that have."""
        with self._changed:
            for piece in pieces:
                queue = self._pending.get(piece.owner)
                if queue and piece in queue:
                    queue.remove(piece)
                    if not queue:
                        del self._pending[piece.owner]
                piece.future.cancel()
                self._give_up(piece)
            self._changed.notify_all()

    def cancel_all_of(self, owner: PieceOwner) -> None:
        """Cancel all that is read on behalf of an owner; those who wait for it hear of it at once."""
        with self._changed:
            pieces = [*self._pending.pop(owner, ()), *(piece for piece in self._started if piece.owner is owner)]
            for piece in pieces:
                self._give_up(piece)
            self._changed.notify_all()
        for piece in pieces:
            _tell_cancelled(piece.future)

    def _give_up(self, piece: RangeRead) -> None:
        """Count a running piece as gone; its thread comes back when the store lets it."""
        if piece in self._started:
            with self._given_up:
                piece.is_given_up = True
                self._given_up.notify_all()
            self._num_stuck += 1
            self._leave(piece)

    def close(self) -> None:
        """End the threads as they come to rest, and cancel what has not begun."""
        with self._changed:
            with self._given_up:
                self._is_closed = True
                self._given_up.notify_all()
            pieces = [piece for queue in self._pending.values() for piece in queue]
            self._pending.clear()
            self._changed.notify_all()
        for piece in pieces:
            _tell_cancelled(piece.future)

    def _staff(self) -> None:
        """Have a thread for each piece that may run now."""
        num_all = len(self._started) + sum(map(len, self._pending.values()))
        wanted = min(MOST_AT_ONCE, num_all) + self._num_stuck
        if self._num_threads < min(wanted, _MOST_THREADS):
            self._num_threads += 1
            threading.Thread(target=self._work, name="penstock-piece", daemon=True).start()

    def _work(self) -> None:
        while (piece := self._next()) is not None:
            result, error = None, None
            self._mine.piece = piece
            try:
                result = piece.action()
            except BaseException as failure:  # noqa: BLE001  raised where the piece is waited for
                error = failure
            self._mine.piece = None
            self._end(piece, result, error)
            del piece, result, error

    def _end(self, piece: RangeRead, result: Any, error: BaseException | None) -> None:
        with self._changed:
            if piece.is_given_up:
                self._num_stuck -= 1
                return
            self._measure(piece.num_bytes)
            self._leave(piece)
            self._staff()
            self._changed.notify()
        if error is not None:
            piece.future.set_exception(error)
        else:
            if piece.num_arrived < piece.num_bytes:  # of a store that tells nothing on the way
                self._count(piece, piece.num_bytes - piece.num_arrived)
            piece.owner.retry_reason = ""
            piece.future.set_result(result)

    def _next(self) -> RangeRead | None:
        with self._changed:
            while not self._is_closed:
                piece = self._best()
                if piece is not None:
                    self._started.add(piece)
                    self._num_small += piece.is_small
                    self._running_bytes += piece.num_bytes
                    if self._pending:
                        self._changed.notify()  # the end of one may let several begin
                    if not piece.future.set_running_or_notify_cancel():
                        self._leave(piece)
                        continue
                    piece.heard_at = time.monotonic()
                    return piece
                if not self._changed.wait(_REST_S) and not self._pending:
                    break
            self._num_threads -= 1
            return None

    def _best(self) -> RangeRead | None:
        if not self._pending:
            return None
        owner = min(self._pending, key=attrgetter("rank"))
        queue = self._pending[owner]
        if not self._may_run(queue[0]):
            self._was_full = True
            return None
        piece = queue.popleft()
        if not queue:
            del self._pending[owner]
        return piece

    def _may_run(self, piece: RangeRead) -> bool:
        if not self._started:
            return True
        num_large = len(self._started) - self._num_small
        if len(self._started) >= (_MOST_BESIDE_LARGE if num_large else MOST_AT_ONCE):
            return False
        if piece.is_small:
            return True
        # A reader stands still for the answers to small ones: large ones do not crowd them out.
        limit = LOWEST if self._num_small else self._concurrency.limit
        return num_large < limit and self._running_bytes + piece.num_bytes <= _MAX_BYTES

    def _leave(self, piece: RangeRead) -> None:
        self._started.discard(piece)
        self._num_small -= piece.is_small
        self._running_bytes -= piece.num_bytes

    def _measure(self, num_bytes: int) -> None:
        self._stretch_bytes += num_bytes
        passed = time.monotonic() - self._stretch_begin
        if passed < _STRETCH_S:
            return
        if passed < 3 * _STRETCH_S:  # a longer stretch held idle time
            self._concurrency = next_concurrency(
                self._concurrency, self._stretch_bytes / passed, is_full=self._was_full
            )
        self._stretch_begin, self._stretch_bytes, self._was_full = time.monotonic(), 0, False


# --- Where they land ----------------------------------------------------------------------------------------


class PartFile:
    """A file that several threads write at once: pieces land in any order, and late pieces land nowhere.

    A piece that was given up on may still come: it must not write into whatever file has got the descriptor since.
    So the descriptor lives until its last writer has left. It takes room on the disk as bytes arrive, not before: what
    an index declares is only a claim.
    """

    def __init__(self, path: Path, mode: int) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._writers = 0
        self._is_closed = False
        self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

    def write(self, data: Buffer, begin: int) -> None:
        """Put bytes at their place; nothing happens once the file is closed."""
        with self._lock:
            if self._is_closed:
                return
            self._writers += 1
        try:
            view = memoryview(data).cast("B")
            while len(view):
                written = os.pwrite(self._number, view, begin)
                view, begin = view[written:], begin + written
        finally:
            with self._lock:
                self._writers -= 1
                self._close_if_unused()

    def close(self) -> None:
        """Take no more pieces."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._close_if_unused()

    def discard(self) -> None:
        """Close and remove."""
        self.close()
        with suppress(FileNotFoundError):
            self.path.unlink()

    def _close_if_unused(self) -> None:
        if self._is_closed and not self._writers and self._number >= 0:
            os.close(self._number)
            self._number = -1


def _tell_cancelled(future: Future[Any]) -> None:
    """Cancel a read whether it has begun or not, so that its waiter wakes up."""
    if future.cancel():
        future.set_running_or_notify_cancel()
    elif not future.done():
        future.set_exception(CancelledError())


# --- How many to read at once: more while it gets faster, fewer when it does not ---------------------------


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Where the search stands: the limit in force, the direction it moved last, the rate before that move."""

    limit: int = HIGHEST
    direction: int = 1
    rate: float = 0.0


def next_concurrency(now: Concurrency, rate: float, *, is_full: bool) -> Concurrency:
    """Move on by what the last stretch measured, in bytes per second.

    A stretch that did not use the limit (`is_full` is false) says nothing about it. A move that brought nothing is
    taken back: more readers than needed cost memory and the store's patience.
    """
    if not is_full or rate <= 0:
        return now
    if now.rate == 0 or rate > now.rate * _BETTER:
        return _step(replace(now, rate=rate))
    if rate < now.rate * _WORSE or now.direction > 0:
        return _step(replace(now, rate=rate, direction=-now.direction))
    return _step(replace(now, rate=rate))


def _step(now: Concurrency) -> Concurrency:
    change = max(1, now.limit // 4)
    limit = min(HIGHEST, max(LOWEST, now.limit + now.direction * change))
    if limit == now.limit:  # at the edge: look the other way next time
        return replace(now, direction=-now.direction)
    return replace(now, limit=limit)
