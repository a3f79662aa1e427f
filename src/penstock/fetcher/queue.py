"""What is wanted from the fetcher, by whom and how soon: who is next, who is served, who waits. One queue for all.

It decides on plain values and does nothing else: no IO, no threads, no clocks, no callbacks. The scheduler says what
time it is, does what is decided here, and calls it under its lock.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from penstock.wire.item import Cause, GroupKey, Item, ItemKey
    from penstock.wire.messages import Fetched
    from penstock.wire.settings import CachedStream

# How many items are fetched at once: enough for as many pieces as are read at once, and some that are unpacked.
MOST_WORKERS = 10  # for what is expected
MOST_URGENT_WORKERS = 12  # when a reader waits
# One more for each directory that none of them works for: a disk that hangs holds up no other.
MOST_DIRECTORIES = 64
FAILED_FOR_S = 30.0  # a prefetch that failed is not tried again so soon, unless it is asked for
DISK_PATIENCE_S = 1.8  # those who are asked to give up what they do not need have done so by then


class State(enum.Enum):
    """Where an item stands."""

    QUEUED = enum.auto()
    RUNNING = enum.auto()
    WAITING_FOR_SPACE = enum.auto()  # there is no room for it now


@dataclass(frozen=True, slots=True)
class Demand:
    """Who wants an item at one moment. It is replaced as a whole, so that any thread may read it at any time."""

    rank: tuple[float, ...]  # how urgent it is, smaller first
    is_urgent: bool  # a reader stands still until it is there
    is_requested: bool  # it is waited for, and kept until the one who waits has locked it
    fail_if_disk_full_at: float  # from when those who wait would rather hear from a full disk than wait for it
    cause: Cause | None  # whose stream it is counted for


@dataclass(eq=False, slots=True)
class Request:
    """The wish of a client that waits for an item."""

    group: GroupKey
    stream: int
    is_urgent: bool
    timeout_s: float
    key: ItemKey
    asked_at: float
    future: Future[Fetched]  # where the scheduler puts the answer; not looked at here
    refused_at: float | None = None  # when it was first told that there is no room, unless it has got some since

    @property
    def late_at(self) -> float:
        """When it has waited for room for too long."""
        return math.inf if self.refused_at is None else self.refused_at + self.timeout_s


@dataclass(eq=False, slots=True)
class QueuedItem:
    """One item to bring to one directory, wanted by any number of requests and plans."""

    directory: Path
    item: Item
    stream: CachedStream
    order: int = 0  # of its coming
    state: State = field(default=State.QUEUED, init=False)
    requests: list[Request] = field(default_factory=list, init=False)
    ahead: dict[Cause, int] = field(default_factory=dict, init=False)  # in how many batches each stream needs it
    competes_in: frozenset[str] = field(default=frozenset(), init=False)  # the directories whose room it waits for
    has_room: bool = field(default=False, init=False)  # it is fetched, and will give its room back or keep what came
    demand: Demand = field(init=False)  # while it is running
    key: ItemKey = field(init=False)  # what makes two wishes the same

    def __post_init__(self) -> None:
        self.key = str(self.directory), self.item.identity

    @property
    def is_urgent(self) -> bool:
        """Whether a reader stands still until it is there."""
        return any(request.is_urgent for request in self.requests)

    @property
    def is_wanted(self) -> bool:
        """Whether it would be missed."""
        return bool(self.requests or self.ahead)

    def soonest(self) -> int:
        """Return in how many batches the first one needs it."""
        return 0 if self.requests else min(self.ahead.values(), default=1 << 30)

    def rank(self) -> tuple[float, ...]:
        """Return its place: those who wait come first, in the order of asking; then who will need it soonest."""
        if self.is_urgent:
            return 0, min(request.asked_at for request in self.requests)
        return 1, self.soonest(), self.order

    def note_demand(self) -> None:
        """Write down anew who wants it now."""
        if self.requests:
            cause: Cause | None = (self.requests[0].group, self.requests[0].stream)
        else:
            cause = min(self.ahead, key=lambda whose: self.ahead[whose], default=None)
        patient_until = (
            request.refused_at + min(DISK_PATIENCE_S, request.timeout_s / 2)
            for request in self.requests
            if request.refused_at is not None
        )
        self.demand = Demand(
            self.rank(), self.is_urgent, bool(self.requests), min(patient_until, default=math.inf), cause
        )


class ItemQueue:
    """The items that wait for a thread, most urgent first; prefetches of stalled directories stay back."""

    def __init__(self) -> None:
        self.items: dict[ItemKey, QueuedItem] = {}
        self.competitors: Mapping[str, frozenset[str]] = {}  # which directories share the room of one, if any do
        self.stalled: set[str] = set()
        self._order = itertools.count()
        self._urgent: dict[ItemKey, QueuedItem] = {}
        self._later: dict[str, list[tuple[int, int, ItemKey]]] = {}
        self._waiting: dict[ItemKey, QueuedItem] = {}  # for space
        self._refused: dict[Request, QueuedItem] = {}
        self._failed: dict[ItemKey, float] = {}  # until when they are not tried again
        # Where room is being made: one item at a time, so that what is needed later never takes the room of the sooner.
        self._admitting: set[str] = set()
        self._running: Counter[str] = Counter()  # how many threads work for a directory

    def __len__(self) -> int:
        return len(self.items)

    @property
    def num_running(self) -> int:
        """How many items have a thread."""
        return sum(queued.state is State.RUNNING for queued in self.items.values())

    @property
    def is_short_of_room(self) -> bool:
        """Whether anything waits for room, or stays back for those who do."""
        return bool(self._waiting or self._refused or self.stalled)

    def competing(self, directory: str) -> frozenset[str]:
        """Return the directories whose room an item competes for."""
        return self.competitors.get(directory) or frozenset({directory})

    # --- Wishes ---------------------------------------------------------------------------------------------

    def ask(self, request: Request, directory: Path, item: Item, stream: CachedStream) -> None:
        """Add a request; the first one for an item brings it to the queue."""
        queued = self._get(request.key, directory, item, stream)
        if item.refresh and not queued.item.refresh:
            queued.item = item
        queued.requests.append(request)
        self._place(queued)

    def withdraw(self, request: Request) -> None:
        """Take a request back."""
        self._stop_waiting(request)
        queued = self.items.get(request.key)
        if queued is not None and request in queued.requests:
            queued.requests.remove(request)
            self.reconsider(queued)

    def expect(self, whose: Cause, ahead: int, item: Item, stream: CachedStream, now: float) -> None:
        """Add what a stream will need in so many batches, unless it has failed just now."""
        key = str(stream.directory), item.identity
        if self._failed and self._failed.get(key, 0.0) > now:
            return
        queued = self._get(key, stream.directory, item, stream)
        before, is_new = queued.soonest(), not queued.is_wanted
        queued.ahead[whose] = ahead
        if is_new or queued.soonest() != before:
            self._place(queued)

    def expect_no_more(self, group: GroupKey, key: ItemKey) -> None:
        """Take back what the streams of a group said to expect."""
        queued = self.items.get(key)
        if queued is not None:
            queued.ahead = {whose: ahead for whose, ahead in queued.ahead.items() if whose[0] != group}
            self.reconsider(queued)

    def _get(self, key: ItemKey, directory: Path, item: Item, stream: CachedStream) -> QueuedItem:
        queued = self.items.get(key)
        if queued is None:
            queued = self.items[key] = QueuedItem(directory, item, stream, next(self._order))
        return queued

    def _place(self, queued: QueuedItem) -> None:
        """Place an item anew after it came to be wanted by one more, or is wanted sooner."""
        if queued.state is State.RUNNING:
            queued.note_demand()
            return
        if queued.state is State.WAITING_FOR_SPACE:
            if not queued.is_urgent:
                return
            queued.state = State.QUEUED
            self._waiting.pop(queued.key, None)
        if queued.is_urgent:
            self._urgent[queued.key] = queued
            return
        self._urgent.pop(queued.key, None)
        if queued.is_wanted:
            queue = self._later.setdefault(queued.key[0], [])
            heapq.heappush(queue, (queued.soonest(), queued.order, queued.key))
            if len(queue) > 4 * len(self.items) + 64:
                self._rebuild(queued.key[0])
        else:
            self._remove(queued)

    def _remove(self, queued: QueuedItem) -> None:
        self.items.pop(queued.key, None)
        self._urgent.pop(queued.key, None)
        self._waiting.pop(queued.key, None)

    def reconsider(self, queued: QueuedItem) -> None:
        """Place an item anew after it is wanted less: a running download goes on, since most of its cost is paid."""
        if queued.state is State.WAITING_FOR_SPACE and not queued.is_wanted:
            self._remove(queued)
        else:
            self._place(queued)

    # --- Turns ----------------------------------------------------------------------------------------------

    def take(self, num_busy: int = 0) -> QueuedItem | None:
        """Take the most urgent item and mark it running, or return None if nothing may start beside so many others.

        Of those that compete for the room of a directory, one is admitted after the other. An item that has to wait
        for one of its directories keeps all of them from those who come after it.
        """
        if num_busy >= MOST_DIRECTORIES:
            return None
        is_crowded, is_full = num_busy >= MOST_WORKERS, num_busy >= MOST_URGENT_WORKERS
        held = self._admitting | self._running.keys() if is_full else set(self._admitting)
        for queued in itertools.chain(self._urgent.values(), () if is_crowded else self._later_heads()):
            needed = self.competing(queued.key[0])
            if held.isdisjoint(needed):
                queued.state, queued.has_room, queued.competes_in = State.RUNNING, False, needed
                self._urgent.pop(queued.key, None)
                self._running[queued.key[0]] += 1
                self._admitting |= needed
                queued.note_demand()
                return queued
            held |= needed
        return None

    def end_admission(self, queued: QueuedItem, *, has_room: bool) -> None:
        """Let the next one in; an item that has got room no longer waits for it."""
        self._admitting -= queued.competes_in
        if has_room:
            queued.has_room = True
            for request in queued.requests:
                self._stop_waiting(request)

    def put_back(self, queued: QueuedItem) -> None:
        """Queue a running item anew."""
        self._end_work(queued)
        queued.state, queued.has_room = State.QUEUED, False
        self._place(queued)

    def finish(self, queued: QueuedItem, now: float, *, has_failed: bool) -> list[Request]:
        """Remove an item that is there or has failed, and return those who wait for it; all others may try again."""
        self._end_work(queued)
        requests, queued.requests = queued.requests, []
        for request in requests:
            self._stop_waiting(request)
        self._remove(queued)
        if has_failed:
            self._failed = {key: until for key, until in self._failed.items() if until > now}
            self._failed[queued.key] = now + FAILED_FOR_S
        else:
            self._failed.pop(queued.key, None)
        self.retry_waiting()
        return requests

    def _end_work(self, queued: QueuedItem) -> None:
        self._running[queued.key[0]] -= 1
        self._running += Counter()  # without those that have none

    def position(self, queued: QueuedItem) -> int:
        """Return how many items come before a waiting one."""
        if queued.state is State.RUNNING:
            return 0
        return sum(1 for other in self._urgent.values() if other.order < queued.order)

    # --- Space ----------------------------------------------------------------------------------------------

    def wait_for_space(self, queued: QueuedItem, now: float) -> None:
        """Put an item aside until there may be room; those who wait for it have waited for room from now on."""
        self._end_work(queued)
        queued.state, queued.has_room = State.WAITING_FOR_SPACE, False
        queued.competes_in = self.competing(queued.key[0])
        self._waiting[queued.key] = queued
        self.stalled |= queued.competes_in
        for request in queued.requests:
            if request.refused_at is None:
                request.refused_at = now
                self._refused[request] = queued

    def retry_waiting(self) -> None:
        """Let every item that waits for space try again; prefetches stay back where others wait for the same room."""
        waiting, self._waiting = list(self._waiting.values()), {}
        self.stalled &= {directory for queued in waiting if queued.is_urgent for directory in queued.competes_in}
        for queued in waiting:
            queued.state = State.QUEUED
            self._place(queued)

    def _stop_waiting(self, request: Request) -> None:
        request.refused_at = None
        self._refused.pop(request, None)

    def next_late_at(self) -> float:
        """Return when the next request will have waited for room for too long."""
        return min((request.late_at for request in self._refused), default=math.inf)

    def take_late(self, now: float) -> list[tuple[QueuedItem, Request]]:
        """Take the requests out that have waited too long, whatever their items are doing at this very moment.

        While something is fetched to the same directories, time does not count: a store that is away holds up what has
        room, and with it those who wait for that room.
        """
        being_fetched = {queued.key[0] for queued in self.items.values() if queued.has_room}
        late = []
        for request, queued in self._refused.items():
            if now < request.late_at:
                continue
            if being_fetched & queued.competes_in:
                request.refused_at = now
            else:
                late.append((queued, request))
        for queued, request in late:
            del self._refused[request]
            queued.requests.remove(request)
        return late

    # --- Those that are needed later ------------------------------------------------------------------------

    def _later_heads(self) -> Iterator[QueuedItem]:
        """Return the soonest item of each directory, soonest first."""
        heads = [head for name in self._later if name not in self.stalled and (head := self._head(name)) is not None]
        while heads:
            first = min(heads)
            heads.remove(first)
            yield self.items[first[2]]

    def _head(self, directory: str) -> tuple[int, int, ItemKey] | None:
        queue = self._later[directory]
        while queue:
            soonest, order, key = queue[0]
            queued = self.items.get(key)
            if (
                queued is not None
                and queued.state is State.QUEUED
                and queued.order == order
                and not queued.is_urgent
                and queued.is_wanted
                and queued.soonest() == soonest
            ):
                return queue[0]
            heapq.heappop(queue)
        return None

    def _rebuild(self, directory: str) -> None:
        self._later[directory] = [
            (queued.soonest(), queued.order, key) for key, queued in self.items.items() if key[0] == directory
        ]
        heapq.heapify(self._later[directory])
