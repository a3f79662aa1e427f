"""What is wanted from the fetcher, by whom and how soon: one queue for all clients. No IO here.

Nothing here is safe for threads: the scheduler calls it under its lock.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
import time
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING

from penstock.cachedir.items import names_of
from penstock.fetcher.pieces import PieceOwner
from penstock.quick_dataclass import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from penstock.cachedir.ledger import Record
    from penstock.fetcher.budget import Reservation
    from penstock.fetcher.counts import GroupKey
    from penstock.wire.item import Item
    from penstock.wire.messages import Fetched
    from penstock.wire.settings import CachedStream

ItemKey = tuple[str, str]  # directory and identity of the item

_DISK_PATIENCE_S = 1.8  # those who are asked to give up what they do not need have done so by then

_order = itertools.count()


class State(enum.Enum):
    """Where an item stands."""

    QUEUED = enum.auto()
    RUNNING = enum.auto()
    PARKED = enum.auto()  # there is no room for it now


@dataclass(frozen=True, slots=True)
class Demand:
    """Who wants an item at one moment."""

    is_urgent: bool  # somebody stands still until it is there
    is_requested: bool  # somebody waits for it: it is kept for him until he has locked it
    insists: bool  # somebody has waited for so long that he would rather hear from a full disk than wait for it
    cause: tuple[GroupKey, int] | None  # whose stream it is counted for


class Transfer(PieceOwner):
    """What is fetched does not change on the way. Who wants it does: that is asked for, and given as a value.

    Its rank has one writer, the scheduler, which replaces it as a whole under its lock; whoever reads it sees the one
    before or the one after.
    """

    def __init__(self, directory: Path, item: Item, stream: CachedStream, demand: Callable[[], Demand]) -> None:
        super().__init__()
        self.directory = directory
        self.item = item
        self.stream = stream
        self.demand = demand
        self.reservation: Reservation | None = None  # its room, given back when it ends
        self.arrived: Record | None = None  # what has taken that room
        self.total_bytes = item.packed_bytes or item.raw_bytes  # 0: not known yet
        self.is_cancelled = False  # for good: who wants it again begins another

    def begin(self, total_bytes: int) -> None:
        """Count from the beginning, now that it is known how many will come."""
        with self._lock:
            self.num_bytes_done, self.total_bytes = 0, total_bytes

    def check_wanted(self) -> None:
        """Raise once nobody wants it any more."""
        if self.is_cancelled:
            raise CancelledError


@dataclass(eq=False)
class Request:
    """Somebody who waits for an item."""

    group: GroupKey
    stream: int
    is_urgent: bool
    timeout_s: float
    key: ItemKey
    future: Future[Fetched] = field(default_factory=Future)
    asked_at: float = field(default_factory=time.monotonic)
    refused_at: float | None = None  # when it was first told that there is no room, unless it has got some since

    @property
    def late_at(self) -> float:
        """When it has waited for room for too long."""
        return math.inf if self.refused_at is None else self.refused_at + self.timeout_s


@dataclass(eq=False)
class QueuedItem:
    """One item to bring to one directory, wanted by any number of requests and plans."""

    directory: Path
    item: Item
    stream: CachedStream
    state: State = State.QUEUED
    requests: list[Request] = field(default_factory=list)
    ahead: dict[tuple[GroupKey, int], int] = field(default_factory=dict)  # of whose stream, in how many batches
    order: int = field(default_factory=lambda: next(_order))
    competes_in: frozenset[str] = frozenset()  # the directories whose room it waits for
    has_room: bool = False  # it is on its way, and will give its room back or keep what came
    transfer: Transfer | None = None  # while it is running
    key: ItemKey = field(init=False)  # what makes two wishes the same

    def __post_init__(self) -> None:
        self.key = str(self.directory), self.item.identity

    @property
    def is_urgent(self) -> bool:
        """Whether somebody stands still until it is there."""
        return any(request.is_urgent for request in self.requests)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody would miss it."""
        return bool(self.requests or self.ahead)

    def soonest(self) -> int:
        """Give in how many batches the first one needs it."""
        return 0 if self.requests else min(self.ahead.values(), default=1 << 30)

    def rank(self) -> tuple[float, ...]:
        """Give its place: who waits comes first, in the order of asking; then who will need it soonest."""
        if self.is_urgent:
            return 0, min(request.asked_at for request in self.requests)
        return 1, self.soonest(), self.order

    def demand(self) -> Demand:
        """Tell who wants it now."""
        now = time.monotonic()
        if self.requests:
            cause: tuple[GroupKey, int] | None = (self.requests[0].group, self.requests[0].stream)
        else:
            cause = min(self.ahead, key=lambda whose: self.ahead[whose], default=None)
        return Demand(
            is_urgent=self.is_urgent,
            is_requested=bool(self.requests),
            insists=any(
                request.refused_at is not None
                and now >= request.refused_at + min(_DISK_PATIENCE_S, request.timeout_s / 2)
                for request in self.requests
            ),
            cause=cause,
        )


class ItemQueue:
    """The items that wait for a thread, most urgent first; prefetches of stalled directories stay back."""

    def __init__(self) -> None:
        self.items: dict[ItemKey, QueuedItem] = {}
        self.stalled: set[str] = set()
        self._urgent: dict[ItemKey, QueuedItem] = {}
        self._parked: dict[ItemKey, QueuedItem] = {}
        self._refused: dict[Request, QueuedItem] = {}
        self._later: dict[str, list[tuple[int, int, ItemKey]]] = {}

    def __len__(self) -> int:
        return len(self.items)

    @property
    def is_short_of_room(self) -> bool:
        """Whether anything waits for room, or stays back for somebody who does."""
        return bool(self._parked or self._refused or self.stalled)

    def is_any_waiting(self) -> bool:
        """Tell whether any item may wait for its turn: in doubt, yes."""
        return bool(self._urgent) or any(self._later.values())

    def urgent_directories(self) -> set[str]:
        """Give the directories for which somebody waits that no thread has begun to serve."""
        return {directory for directory, _ in self._urgent}

    def get(self, key: ItemKey, make: Callable[[], QueuedItem]) -> QueuedItem:
        """Give the item of a wish, a new one if it is the first."""
        queued = self.items.get(key)
        if queued is None:
            queued = self.items[key] = make()
        return queued

    def update(self, queued: QueuedItem) -> None:
        """Place an item anew after somebody came to want it, or wants it sooner."""
        if queued.transfer is not None:
            queued.transfer.rank = queued.rank()
        if queued.state is State.PARKED and queued.is_urgent:
            queued.state = State.QUEUED
            self._parked.pop(queued.key, None)
        if queued.state is not State.QUEUED:
            return
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
            self.remove(queued)

    def remove(self, queued: QueuedItem) -> None:
        """Forget an item that is done, has failed, or is no longer wanted."""
        self.items.pop(queued.key, None)
        self._urgent.pop(queued.key, None)
        self._parked.pop(queued.key, None)

    def reconsider(self, queued: QueuedItem) -> None:
        """After somebody lost interest: a running download goes on, since most of its cost is paid."""
        if queued.state is State.PARKED and not queued.is_wanted:
            self.remove(queued)
        else:
            self.update(queued)

    # --- Room -----------------------------------------------------------------------------------------------

    def park(self, queued: QueuedItem, now: float) -> None:
        """Put an item aside until there may be room; those who wait for it have waited for room from now on."""
        queued.state = State.PARKED
        queued.has_room = False
        self._parked[queued.key] = queued
        self._urgent.pop(queued.key, None)
        self.stalled |= queued.competes_in
        for request in queued.requests:
            if request.refused_at is None:
                request.refused_at = now
                self._refused[request] = queued

    def unpark(self) -> None:
        """Let every parked item try again; prefetches stay back where somebody waits for the same room."""
        parked, self._parked = list(self._parked.values()), {}
        self.stalled &= {directory for queued in parked if queued.is_urgent for directory in queued.competes_in}
        for queued in parked:
            queued.state = State.QUEUED
            self.update(queued)

    def grant(self, queued: QueuedItem) -> None:
        """Note that an item has got room: nobody waits for that any more."""
        queued.has_room = True
        for request in queued.requests:
            self.forget(request)

    def forget(self, request: Request) -> None:
        """Note that a request does not wait for room."""
        request.refused_at = None
        self._refused.pop(request, None)

    def next_late_at(self) -> float:
        """Give when the next request will have waited for room for too long."""
        return min((request.late_at for request in self._refused), default=math.inf)

    def take_late(self, now: float) -> list[tuple[QueuedItem, Request]]:
        """Take the requests out that have waited too long, whatever their items are doing at this very moment.

        While something is on its way to the same directories, time does not count: a store that is away holds up what
        has room, and with it those who wait for that room.
        """
        on_their_way = {queued.key[0] for queued in self.items.values() if queued.has_room}
        late = []
        for request, queued in self._refused.items():
            if now < request.late_at:
                continue
            if on_their_way & queued.competes_in:
                request.refused_at = now
            else:
                late.append((queued, request))
        for queued, request in late:
            del self._refused[request]
            queued.requests.remove(request)
        return late

    # --- Turns ----------------------------------------------------------------------------------------------

    def pop(
        self,
        *,
        only_urgent: bool,
        busy: Collection[str] = (),
        competing: Callable[[QueuedItem], frozenset[str]] = lambda _: frozenset(),
    ) -> QueuedItem | None:
        """Take the most urgent item and mark it running, or give None if nothing may start now.

        `competing` gives the directories whose room an item competes for, `busy` are those in which somebody is making
        room. Whoever has to wait for one of them keeps all its own from those who come after it.
        """
        held = set(busy)
        for queued in itertools.chain(self._urgent.values(), () if only_urgent else self._later_heads()):
            needed = competing(queued)
            if held.isdisjoint(needed):
                queued.state = State.RUNNING
                queued.has_room = False
                self._urgent.pop(queued.key, None)
                return queued
            held |= needed
        return None

    def position(self, queued: QueuedItem) -> int:
        """Give how many items come before a waiting one."""
        if queued.state is State.RUNNING:
            return 0
        return sum(1 for other in self._urgent.values() if other.order < queued.order)

    def _later_heads(self) -> Iterator[QueuedItem]:
        """Give the soonest item of each directory, soonest first."""
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
            is_valid = (
                queued is not None and queued.state is State.QUEUED and queued.order == order and not queued.is_urgent
            )
            if queued is not None and is_valid and queued.soonest() == soonest and queued.is_wanted:
                return queue[0]
            heapq.heappop(queue)
        return None

    def _rebuild(self, directory: str) -> None:
        self._later[directory] = [
            (queued.soonest(), queued.order, key) for key, queued in self.items.items() if key[0] == directory
        ]
        heapq.heapify(self._later[directory])


def ahead_in(directories: Iterable[str], plans: Iterable[dict[ItemKey, int]]) -> dict[str, dict[str, int]]:
    """Give, for each of some directories, in how many batches each name is needed first."""
    merged: dict[str, dict[str, int]] = {name: {} for name in directories}
    for plan in plans:
        for (directory, identity), ahead in plan.items():
            if directory in merged:
                for name in names_of(identity):
                    merged[directory][name] = min(ahead, merged[directory].get(name, ahead))
    return merged
