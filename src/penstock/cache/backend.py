"""Who does the fetching for a cache: the node's fetcher, or a thread of this process for stores that live in it."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from penstock.cache.client import Client, RegisteredCache, new_group
from penstock.processes import PerProcess
from penstock.storage.pieces import PIECE_BYTES
from penstock.storage.ranges import join_neighbours
from penstock.wire.ahead import NOTHING, pack_ahead
from penstock.wire.messages import Expect, Fetch, Fetched, GetCaused, GetStats, Message, Read, Register, Released, Taken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from penstock.fetcher.scheduler import Scheduler
    from penstock.types import Place
    from penstock.wire.item import Item, Want
    from penstock.wire.messages import Progress, StreamCounts
    from penstock.wire.settings import CachedStream
    from penstock.wire.share import Share

T = TypeVar("T")

_PROGRESS_S = 1.0


# --- The node's fetcher -------------------------------------------------------------------------------------

_shared_client = PerProcess(Client)


class FetcherBackend:
    """Asks the fetcher over the one connection of this process to it."""

    def __init__(
        self,
        streams: Sequence[CachedStream],
        limit_bytes: int | None,
        on_warnings: Callable[[list[str]], None],
        on_share: Callable[[Share], None],
        on_caused: Callable[[int, StreamCounts], None],
    ) -> None:
        self._group = new_group()
        self._register = Register(self._group, tuple(streams), limit_bytes)
        self._plan = Expect(self._group, ())
        self._on_caused = on_caused
        self._client = _shared_client.get()
        self._client.join(self._group, RegisteredCache(self._introduction, on_warnings, on_share, on_caused))

    @property
    def is_running(self) -> bool:
        """Whether anybody is there to hear a note; asking starts somebody."""
        return self._client.is_connected

    def listen(self) -> None:
        """Have a line over which somebody can say what this process may keep open."""
        if not self._client.is_connected:
            self._client.connect()

    def fetch(self, stream: int, item: Item, on_progress: Callable[[Progress], None], *, is_urgent: bool) -> Fetched:
        """Bring an item and wait until it is there."""
        ahead = NOTHING
        if item.is_index and not self._client.is_connected:
            # Those before it have been opened.
            ahead = pack_ahead(item.parts[0].raw.key, self._register.streams[stream:])
        message = Fetch(self._group, stream, item, is_urgent)
        return self._client.request(message, on_progress=on_progress, ahead=ahead)[0]

    def read(
        self,
        stream: int,
        places: Sequence[Place],
        edition: str,
        shards: Mapping[str, int],
        on_progress: Callable[[Progress], None],
        on_asked: Callable[[], None] = lambda: None,
    ) -> list[bytes]:
        """Give objects, or ranges of them; `shards` numbers those that are shards of an edition.

        `on_asked` is called while they are on their way: what it asks for comes after them.
        """
        stretches = join_neighbours(places, most_bytes=PIECE_BYTES)
        message = Read(self._group, stream, tuple(place for place, _ in stretches), edition, dict(shards))
        found, payload = self._client.request(message, on_progress=on_progress, on_asked=on_asked)
        if len(places) == 1:
            return [payload]
        came = []
        begin = 0
        for (_, sizes), num_bytes in zip(stretches, found.sizes, strict=True):
            end = begin + num_bytes
            for size in sizes:
                came.append(payload[begin : end if size is None else min(begin + size, end)])
                begin += len(came[-1])
            begin = end
        return came

    def expect(self, wants: Sequence[Want]) -> None:
        """Say what will be wanted."""
        self._plan = Expect(self._group, tuple(wants))
        if self._client.is_connected:
            self._client.note(self._plan)
        elif not all(want.is_present for want in wants):
            self._client.request(self._plan)

    def released(self) -> None:
        """Say that a lease was closed."""
        self._client.note(Released())

    def taken(self, stream: int, identity: str) -> None:
        """Say that a lease was taken."""
        self._client.note(Taken(self._group, stream, identity))

    def hear_caused(self) -> None:
        """Hear now of all downloads of this cache that have ended, of which one hears anyway in a moment."""
        if self._client.is_connected:
            for stream, counts in self._client.request(GetCaused(self._group))[0].streams.items():
                self._on_caused(stream, counts)

    def node_stats(self) -> dict[str, Any]:
        """Give the fetcher's own counts."""
        return asdict(self._client.request(GetStats())[0]) if self._client.is_connected else {}

    def close(self) -> None:
        """Leave; the last cache of the process hangs up."""
        self._client.leave(self._group)

    def _introduction(self) -> list[Message[Any]]:
        return [self._register, self._plan] if self._plan.wants else [self._register]


# --- A store in the memory of this process ------------------------------------------------------------------


class _LocalScheduler:
    """The scheduler of this process, there while any cache uses it. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the collector may close a cache at any time
        self._users: set[int] = set()
        self._scheduler: Scheduler | None = None

    def join(self, group: int) -> Scheduler:
        from penstock.fetcher.scheduler import Scheduler

        with self._lock:
            self._users.add(group)
            if self._scheduler is None:
                self._scheduler = Scheduler()
            return self._scheduler

    def leave(self, group: int) -> None:
        with self._lock:
            self._users.discard(group)
            unused = None if self._users else self._scheduler
            if unused is not None:
                self._scheduler = None
        if unused is not None:
            unused.close()


_local_scheduler = PerProcess(_LocalScheduler)


def _answer(future: Future[T], report: Callable[[], None]) -> T:
    """Wait for an answer, and report every second."""
    while not wait([future], _PROGRESS_S).done:
        report()
    return future.result()


class LocalBackend:
    """Runs the same scheduler in this process."""

    def __init__(
        self,
        streams: Sequence[CachedStream],
        limit_bytes: int | None,
        on_warnings: Callable[[list[str]], None],
        on_share: Callable[[Share], None],
        on_caused: Callable[[int, StreamCounts], None],
    ) -> None:
        self._key = 0, new_group()  # all of one client, which is this process
        self._shared = _local_scheduler.get()
        self._scheduler = self._shared.join(self._key[1])
        warnings = self._scheduler.register(self._key, streams, limit_bytes, on_share, on_caused)
        if warnings:
            on_warnings(warnings)

    @property
    def is_running(self) -> bool:
        """It always is."""
        return True

    def listen(self) -> None:
        """The scheduler says what it wants by itself."""

    def fetch(self, stream: int, item: Item, on_progress: Callable[[Progress], None], *, is_urgent: bool) -> Fetched:
        """Bring an item and wait until it is there."""
        request = self._scheduler.ask(self._key, stream, item, is_urgent=is_urgent)
        try:
            fetched = _answer(request.future, lambda: on_progress(self._scheduler.progress(request)))
        finally:
            self._scheduler.withdraw(request)
        notice = self._scheduler.take_notice(self._key, stream)
        return replace(fetched, warnings=(*fetched.warnings, notice)) if notice else fetched

    def read(
        self,
        stream: int,
        places: Sequence[Place],
        edition: str,
        shards: Mapping[str, int],
        on_progress: Callable[[Progress], None],
        on_asked: Callable[[], None] = lambda: None,
    ) -> list[bytes]:
        """Give objects, or ranges of them."""
        reading = self._scheduler.read(self._key, stream, places, edition, shards)
        on_asked()
        found = _answer(reading.future, lambda: on_progress(self._scheduler.progress_of_read(reading)))
        return [b"".join(pieces) for pieces in found]

    def expect(self, wants: Sequence[Want]) -> None:
        """Say what will be wanted."""
        self._scheduler.expect(self._key, wants)

    def released(self) -> None:
        """Say that a lease was closed."""
        self._scheduler.released()

    def taken(self, stream: int, identity: str) -> None:
        """Say that a lease was taken."""
        self._scheduler.taken(self._key, stream, identity)

    def hear_caused(self) -> None:
        """One has heard already."""

    def node_stats(self) -> dict[str, Any]:
        """Give the scheduler's counts."""
        return asdict(self._scheduler.stats())

    def close(self) -> None:
        """Leave; the scheduler ends with its last user."""
        self._scheduler.unregister(self._key)
        self._shared.leave(self._key[1])


Backend: TypeAlias = FetcherBackend | LocalBackend  # what a cache asks; all calls are for one group of directories
