"""What a cache asks for: of the node's fetcher, or of a scheduler in this process for stores that live in it."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.cache.client import Client, RegisteredCache, new_group
from penstock.errors import FetcherError
from penstock.processes import PerProcess
from penstock.storage.ranges import PIECE_BYTES, join_neighbours
from penstock.wire.ahead import NOTHING, pack_ahead
from penstock.wire.messages import (
    Expect,
    Fetch,
    Fetched,
    GetStats,
    GetStreamCounts,
    GroupUpdate,
    LeaseAcquired,
    Message,
    Read,
    Register,
    Released,
    Unregister,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.fetcher.scheduler import Scheduler
    from penstock.fetcher.session import Session
    from penstock.types import Place
    from penstock.wire.item import Item, Want
    from penstock.wire.messages import AnswerT, Progress
    from penstock.wire.settings import CachedStream

_PROGRESS_S = 1.0


class Backend:
    """Asks for one group of directories; `on_update` hears what may stay open, what was caused, and what to warn of."""

    def __init__(
        self,
        streams: Sequence[CachedStream],
        limit_bytes: int | None,
        on_update: Callable[[GroupUpdate], None],
        *,
        is_local: bool,
    ) -> None:
        self._group = new_group()
        self._register = Register(self._group, tuple(streams), limit_bytes)
        self._plan = Expect(self._group, ())
        self._on_update = on_update
        self._line: Client | LocalLine = (_local_line if is_local else _shared_client).get()
        self._line.join(self._group, RegisteredCache(self._introduction, on_update))

    @property
    def is_running(self) -> bool:
        """Whether notes are heard; a question starts what hears them."""
        return self._line.is_connected

    def listen(self) -> None:
        """Have a line over which this process can be told what it may keep open."""
        if not self._line.is_connected:
            self._line.connect()

    def fetch(self, stream: int, item: Item, on_progress: Callable[[Progress], None], *, is_urgent: bool) -> Fetched:
        """Bring an item and wait until it is there."""
        ahead = NOTHING
        if item.is_index and not self._line.is_connected:
            # Those before it have been opened.
            ahead = pack_ahead(item.parts[0].raw.key, self._register.streams[stream:])
        message = Fetch(self._group, stream, item, is_urgent)
        return self._line.request(message, on_progress=on_progress, ahead=ahead)[0]

    def read(
        self,
        stream: int,
        places: Sequence[Place],
        edition: str,
        shards: Mapping[str, int],
        on_progress: Callable[[Progress], None],
        on_asked: Callable[[], None] = lambda: None,
    ) -> list[bytes]:
        """Return objects, or ranges of them; `shards` numbers those that are shards of an edition.

        `on_asked` is called while they are on their way: what it asks for comes after them.
        """
        stretches = join_neighbours(places, most_bytes=PIECE_BYTES)
        message = Read(self._group, stream, tuple(place for place, _ in stretches), edition, dict(shards))
        found, payload = self._line.request(message, on_progress=on_progress, on_asked=on_asked)
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
        """Announce what will be wanted."""
        self._plan = Expect(self._group, tuple(wants))
        if self._line.is_connected:
            self._line.note(self._plan)
        elif not all(want.is_present for want in wants):
            self._line.request(self._plan)

    def released(self) -> None:
        """Announce that a lease was closed."""
        self._line.note(Released())

    def taken(self, stream: int, identity: str) -> None:
        """Announce that a lease was taken."""
        self._line.note(LeaseAcquired(self._group, stream, identity))

    def refresh_counts(self) -> None:
        """Hear now of all downloads of this cache that have ended, of which one hears anyway in a moment."""
        if self._line.is_connected:
            self._on_update(self._line.request(GetStreamCounts(self._group))[0])

    def node_stats(self) -> dict[str, Any]:
        """Return the counts of what does the fetching."""
        return asdict(self._line.request(GetStats())[0]) if self._line.is_connected else {}

    def close(self) -> None:
        """Leave; the last cache of the process hangs up."""
        self._line.leave(self._group)

    def _introduction(self) -> list[Message[Any]]:
        return [self._register, self._plan] if self._plan.wants else [self._register]


# --- A store in the memory of this process ------------------------------------------------------------------


class LocalLine:
    """A scheduler of this process, there while any cache uses it, and asked as the fetcher is. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the collector may close a cache at any time
        self._caches: dict[int, RegisteredCache] = {}
        self._scheduler: Scheduler | None = None
        self._session: Session | None = None
        self.is_connected = True

    def connect(self) -> None:
        """There is no line to be made."""

    def join(self, group: int, cache: RegisteredCache) -> None:
        """Add a cache, and introduce it."""
        from penstock.fetcher.scheduler import Scheduler
        from penstock.fetcher.session import Session

        with self._lock:
            self._caches[group] = cache
            if self._scheduler is None:
                self._scheduler = Scheduler()
                self._session = Session(self._scheduler, 0, self._hear)
        for message in cache.introduce():
            cache.take_answer(group, self.request(message)[0])

    def leave(self, group: int) -> None:
        """Remove a cache; the scheduler ends with the last one."""
        self.note(Unregister(group))
        with self._lock:
            self._caches.pop(group, None)
            unused = None if self._caches else self._scheduler
            if unused is not None:
                self._scheduler = self._session = None
        if unused is not None:
            unused.close()

    def note(self, message: Message[Any]) -> None:
        """Announce what needs no answer."""
        session = self._session
        if session is not None:
            session.do(message)

    def request(
        self,
        message: Message[AnswerT],
        *,
        on_progress: Callable[[Progress], None] = lambda _: None,
        on_asked: Callable[[], None] = lambda: None,
        ahead: bytes = NOTHING,  # noqa: ARG002  nothing has to be started
    ) -> tuple[AnswerT, bytes]:
        """Ask and wait, with a report every second."""
        from penstock.fetcher.session import Pending, answer_of

        session = self._session
        if session is None:
            raise FetcherError("a cache was closed while it was used")
        answer: Any = session.do(message)
        on_asked()
        if isinstance(pending := answer, Pending):
            try:
                while not wait([pending.future], _PROGRESS_S).done:
                    on_progress(pending.progress())
                answer = pending.future.result()
            finally:
                pending.end()
        answer, payload = answer_of(answer)
        return answer, b"".join(payload)

    def _hear(self, update: GroupUpdate) -> None:
        cache = self._caches.get(update.group)
        if cache is not None:
            cache.on_update(update)


_shared_client = PerProcess(Client)
_local_line = PerProcess(LocalLine)
