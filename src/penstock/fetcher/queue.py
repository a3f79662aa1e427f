"""What is wanted from the fetcher, by whom and how soon: one queue over everybody's wishes. No IO here."""

from __future__ import annotations

import enum
import heapq
import itertools
import math
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.fetcher.pieces import Owner
from penstock.wire.item import names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from penstock.wire.item import Item
    from penstock.wire.settings import CachedStream

GroupKey = tuple[int, int]  # client and its group
JobKey = tuple[str, str]  # directory and identity of the item

_DISK_PATIENCE_S = 1.8  # those who are asked to give up what they do not need have done so by then

_order = itertools.count()


class State(enum.Enum):
    """Where a job stands."""

    QUEUED = enum.auto()
    RUNNING = enum.auto()
    PARKED = enum.auto()  # there is no room for it now


@dataclass(eq=False)
class Ticket:
    """One request that somebody waits for."""

    group: GroupKey
    stream: int
    is_urgent: bool
    timeout_s: float
    future: Future[dict[str, Any]] = field(default_factory=Future)
    asked_at: float = field(default_factory=time.monotonic)
    refused_at: float | None = None  # when it was first told that there is no room, unless it has got some since

    @property
    def late_at(self) -> float:
        """When it has waited for room for too long."""
        return math.inf if self.refused_at is None else self.refused_at + self.timeout_s


@dataclass(eq=False)
class Job(Owner):
    """One item to bring to one directory, wanted by any number of requests and plans."""

    directory: Path
    item: Item
    stream: CachedStream
    state: State = State.QUEUED
    tickets: list[Ticket] = field(default_factory=list)
    ahead: dict[tuple[GroupKey, int], int] = field(default_factory=dict)  # of whose stream, in how many batches
    order: int = field(default_factory=lambda: next(_order))
    num_bytes_done: int = 0
    is_cancelled: bool = False
    competes_in: frozenset[str] = frozenset()  # the directories whose room it waits for
    has_room: bool = False  # it is on its way, and will give its room back or keep what came

    @property
    def key(self) -> JobKey:
        """What makes two wishes the same."""
        return str(self.directory), self.item.identity

    @property
    def is_urgent(self) -> bool:
        """Whether somebody stands still until it is there."""
        return any(ticket.is_urgent for ticket in self.tickets)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody would miss it."""
        return bool(self.tickets or self.ahead)

    def insists(self) -> bool:
        """Tell whether somebody has waited for so long that he would rather hear from a full disk than wait for it."""
        now = time.monotonic()
        return any(
            ticket.refused_at is not None and now >= ticket.refused_at + min(_DISK_PATIENCE_S, ticket.timeout_s / 2)
            for ticket in tuple(self.tickets)
        )

    def soonest(self) -> int:
        """Give in how many batches the first one needs it."""
        return 0 if self.tickets else min(self.ahead.values(), default=1 << 30)

    def rank(self) -> tuple[float, ...]:
        """Give its place: who waits comes first, in the order of asking; then who will need it soonest."""
        tickets = tuple(self.tickets)
        if any(ticket.is_urgent for ticket in tickets):
            return 0, min(ticket.asked_at for ticket in tickets)
        return 1, self.soonest(), self.order

    def credit(self) -> tuple[GroupKey, int] | None:
        """Give whose stream caused it."""
        if self.tickets:
            return self.tickets[0].group, self.tickets[0].stream
        return min(self.ahead, key=lambda whose: self.ahead[whose], default=None)


class JobQueue:
    """The jobs that wait for a thread, most urgent first; prefetches of stalled directories stay back."""

    def __init__(self) -> None:
        self.jobs: dict[JobKey, Job] = {}
        self.stalled: set[str] = set()
        self._urgent: dict[JobKey, Job] = {}
        self._parked: dict[JobKey, Job] = {}
        self._refused: dict[Ticket, Job] = {}
        self._later: dict[str, list[tuple[int, int, JobKey]]] = {}

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def is_short_of_room(self) -> bool:
        """Whether anything waits for room, or stays back for somebody who does."""
        return bool(self._parked or self._refused or self.stalled)

    def get(self, key: JobKey, make: Callable[[], Job]) -> Job:
        """Give the job of a wish, a new one if it is the first."""
        job = self.jobs.get(key)
        if job is None:
            job = self.jobs[key] = make()
        return job

    def update(self, job: Job) -> None:
        """Place a job anew after somebody came to want it, or wants it sooner."""
        if job.state is State.PARKED and job.is_urgent:
            job.state = State.QUEUED
            self._parked.pop(job.key, None)
        if job.state is not State.QUEUED:
            return
        if job.is_urgent:
            self._urgent[job.key] = job
            return
        self._urgent.pop(job.key, None)
        if job.is_wanted:
            queue = self._later.setdefault(job.key[0], [])
            heapq.heappush(queue, (job.soonest(), job.order, job.key))
            if len(queue) > 4 * len(self.jobs) + 64:
                self._rebuild(job.key[0])
        else:
            self.remove(job)

    def remove(self, job: Job) -> None:
        """Forget a job that is done, has failed, or is no longer wanted."""
        self.jobs.pop(job.key, None)
        self._urgent.pop(job.key, None)
        self._parked.pop(job.key, None)

    # --- Room -----------------------------------------------------------------------------------------------

    def park(self, job: Job, now: float) -> None:
        """Put a job aside until there may be room; those who wait for it have waited for room from now on."""
        job.state = State.PARKED
        job.has_room = False
        self._parked[job.key] = job
        self._urgent.pop(job.key, None)
        self.stalled |= job.competes_in
        for ticket in job.tickets:
            if ticket.refused_at is None:
                ticket.refused_at = now
                self._refused[ticket] = job

    def unpark(self) -> None:
        """Let every parked job try again; prefetches stay back where somebody waits for the same room."""
        parked, self._parked = list(self._parked.values()), {}
        self.stalled &= {directory for job in parked if job.is_urgent for directory in job.competes_in}
        for job in parked:
            job.state = State.QUEUED
            self.update(job)

    def grant(self, job: Job) -> None:
        """Note that a job has got room: nobody waits for that any more."""
        job.has_room = True
        for ticket in job.tickets:
            self.forget(ticket)

    def forget(self, ticket: Ticket) -> None:
        """Note that a request does not wait for room."""
        ticket.refused_at = None
        self._refused.pop(ticket, None)

    def next_late_at(self) -> float:
        """Give when the next request will have waited for room for too long."""
        return min((ticket.late_at for ticket in self._refused), default=math.inf)

    def take_late(self, now: float) -> list[tuple[Job, Ticket]]:
        """Take the requests out that have waited too long, whatever their jobs are doing at this very moment.

        While something is on its way to the same directories, time does not count: a store that is away holds up what
        has room, and with it those who wait for that room.
        """
        on_their_way = {job.key[0] for job in self.jobs.values() if job.has_room}
        late = []
        for ticket, job in self._refused.items():
            if now < ticket.late_at:
                continue
            if on_their_way & job.competes_in:
                ticket.refused_at = now
            else:
                late.append((job, ticket))
        for job, ticket in late:
            del self._refused[ticket]
            job.tickets.remove(ticket)
        return late

    # --- Turns ----------------------------------------------------------------------------------------------

    def pop(self, *, only_urgent: bool) -> Job | None:
        """Take the most urgent job and mark it running, or give None if nothing may start now."""
        job = self._first_urgent() or (None if only_urgent else self._first_later())
        if job is not None:
            job.state = State.RUNNING
            job.has_room = False
            self._urgent.pop(job.key, None)
        return job

    def position(self, job: Job) -> int:
        """Give how many jobs come before a waiting one."""
        if job.state is State.RUNNING:
            return 0
        return sum(1 for other in self._urgent.values() if other.order < job.order)

    def _first_urgent(self) -> Job | None:
        return next(iter(self._urgent.values()), None)

    def _first_later(self) -> Job | None:
        heads = [head for name in self._later if name not in self.stalled and (head := self._head(name)) is not None]
        return self.jobs[min(heads)[2]] if heads else None

    def _head(self, directory: str) -> tuple[int, int, JobKey] | None:
        queue = self._later[directory]
        while queue:
            soonest, order, key = queue[0]
            job = self.jobs.get(key)
            is_valid = job is not None and job.state is State.QUEUED and job.order == order and not job.is_urgent
            if job is not None and is_valid and job.soonest() == soonest and job.is_wanted:
                return queue[0]
            heapq.heappop(queue)
        return None

    def _rebuild(self, directory: str) -> None:
        self._later[directory] = [
            (job.soonest(), job.order, key) for key, job in self.jobs.items() if key[0] == directory
        ]
        heapq.heapify(self._later[directory])


@dataclass(frozen=True, slots=True)
class Want:
    """A wish of a plan: which stream, what, in how many batches, and whether it lies there already."""

    stream: int
    item: Item
    ahead: int
    is_present: bool


class Plans:
    """What each group expects; a new plan of a group replaces its old one."""

    def __init__(self) -> None:
        self._plans: dict[GroupKey, dict[JobKey, int]] = {}

    def replace(self, group: GroupKey, plan: dict[JobKey, int]) -> set[JobKey]:
        """Set a plan and give what it no longer holds."""
        old = self._plans.get(group, {})
        self._plans[group] = plan
        return old.keys() - plan.keys()

    def drop(self, group: GroupKey) -> set[JobKey]:
        """Forget a plan and give what it held."""
        return set(self._plans.pop(group, {}))

    def ahead_in(self, directories: Iterable[str]) -> dict[str, dict[str, int]]:
        """Give, for each of some directories, in how many batches each name is needed first."""
        merged: dict[str, dict[str, int]] = {name: {} for name in directories}
        for directory, identity, ahead in self._all():
            if directory in merged:
                for name in names_of(identity):
                    merged[directory][name] = min(ahead, merged[directory].get(name, ahead))
        return merged

    def _all(self) -> Iterator[tuple[str, str, int]]:
        for plan in self._plans.values():
            for (directory, identity), ahead in plan.items():
                yield directory, identity, ahead
