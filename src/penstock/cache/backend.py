"""Who does the fetching for a cache: the node's fetcher, or a thread of this process for stores that live in it."""

from __future__ import annotations

import itertools
import os
import threading
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from penstock.cache.client import Client, Member
from penstock.processes import abandon_in_children
from penstock.wire.item import Item, dump_item
from penstock.wire.settings import dump_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.fetcher.queue import Want
    from penstock.fetcher.scheduler import Engine
    from penstock.types import Place
    from penstock.wire.frames import Header
    from penstock.wire.settings import CachedStream
    from penstock.wire.share import Share

_PROGRESS_S = 1.0


class Backend(Protocol):
    """What a cache asks of its fetcher. All calls are for one group of directories."""

    @property
    def is_running(self) -> bool:
        """Whether anybody is there to hear a note; asking starts somebody."""
        ...

    def listen(self) -> None:
        """Have a line over which somebody can say what this process may keep open."""
        ...

    def fetch(self, stream: int, item: Item, on_progress: Callable[[Header], None], *, is_urgent: bool) -> Header:
        """Bring an item and wait until it is there."""
        ...

    def read(self, stream: int, places: Sequence[Place], edition: str, shards: Mapping[str, int]) -> list[bytes]:
        """Give objects, or ranges of them; `shards` numbers those that are shards of an edition."""
        ...

    def expect(self, wants: Sequence[Want]) -> None:
        """Say what will be wanted."""
        ...

    def released(self) -> None:
        """Say that a lease was closed."""
        ...

    def taken(self, stream: int, identity: str) -> None:
        """Say that a lease was taken."""
        ...

    def caused(self) -> dict[int, list[int]]:
        """Give downloads and bytes by stream."""
        ...

    def node_stats(self) -> Header:
        """Give the fetcher's own counts."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


# --- The node's fetcher -------------------------------------------------------------------------------------

_group_numbers = itertools.count()
_client: Client | None = None
_sharing = threading.Lock()


class _Fresh:
    """After a fork, locks may be held by threads that the child does not have, and its parent's line is not its own."""

    def abandon(self) -> None:
        global _sharing, _client, _engines_lock, _engine
        _sharing = threading.Lock()
        _client = None
        _engines_lock = threading.Lock()
        _engine = None
        abandon_in_children(self)


def _shared_client() -> Client:
    global _client
    if _client is None:
        _client = Client()
    return _client


class Guest:
    """A line to the fetcher for whoever has no directories of his own. In a forked child it is made anew.

    Nobody shares it, so that what one of them waits for can be given up.
    """

    def __init__(self) -> None:
        self._group: int | None = None
        self._client: Client | None = None
        self._pid = os.getpid()

    def request(self, header: Header) -> tuple[Header, bytes]:
        """Ask and wait."""
        with _sharing:
            if self._client is None or self._pid != os.getpid():
                self._group, self._client, self._pid = next(_group_numbers), Client(), os.getpid()
                self._client.join(self._group, Member(list, lambda _: None, lambda _: None))
            client = self._client
        return client.request(header)

    def stop(self) -> None:
        """Give up whatever is being waited for, in whatever thread."""
        with _sharing:
            if self._client is not None and self._pid == os.getpid():
                self._client.stop()

    def close(self) -> None:
        """Hang up; the next request makes a new line."""
        with _sharing:
            if self._client is not None and self._group is not None and self._pid == os.getpid():
                self._client.leave(self._group)
            self._client = None

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[Guest], tuple[()]]:
        return Guest, ()


class FetcherBackend:
    """Asks the fetcher over this process's one line to it."""

    def __init__(
        self,
        streams: Sequence[CachedStream],
        limit_bytes: int | None,
        on_warnings: Callable[[list[str]], None],
        on_share: Callable[[Share], None],
    ) -> None:
        self._streams = streams
        self._limit_bytes = limit_bytes
        self._group = next(_group_numbers)
        self._plan: list[Any] = []
        with _sharing:
            self._client = _shared_client()
        self._client.join(self._group, Member(self._introduction, on_warnings, on_share))

    @property
    def is_running(self) -> bool:
        """Whether this process has a line."""
        return self._client.is_connected

    def listen(self) -> None:
        """Have a line."""
        if not self._client.is_connected:
            self._client.connect()

    def fetch(self, stream: int, item: Item, on_progress: Callable[[Header], None], *, is_urgent: bool) -> Header:
        """Bring an item and wait until it is there."""
        header = {"op": "fetch", "group": self._group, "stream": stream, "item": dump_item(item), "urgent": is_urgent}
        return self._client.request(header, on_progress=on_progress)[0]

    def read(self, stream: int, places: Sequence[Place], edition: str, shards: Mapping[str, int]) -> list[bytes]:
        """Give objects, or ranges of them."""
        plain = [[key] if span is None else [key, span.begin, span.end] for key, span in places]
        header = {"op": "read", "group": self._group, "stream": stream, "places": plain, "edition": edition}
        header["shards"] = dict(shards)
        answer, payload = self._client.request(header)
        if len(places) == 1:
            return [payload]
        ends = list(itertools.accumulate(answer["sizes"]))
        return [payload[end - size : end] for end, size in zip(ends, answer["sizes"], strict=True)]

    def expect(self, wants: Sequence[Want]) -> None:
        """Say what will be wanted."""
        self._plan = [[want.stream, dump_item(want.item), want.ahead, want.is_present] for want in wants]
        if self._client.is_connected:
            self._client.note({"op": "expect", "group": self._group, "wants": self._plan})
        elif not all(want.is_present for want in wants):
            self._client.request({"op": "expect", "group": self._group, "wants": self._plan})

    def released(self) -> None:
        """Say that a lease was closed."""
        self._client.note({"op": "released"})

    def taken(self, stream: int, identity: str) -> None:
        """Say that a lease was taken."""
        self._client.note({"op": "taken", "group": self._group, "stream": stream, "identity": identity})

    def caused(self) -> dict[int, list[int]]:
        """Give downloads and bytes by stream."""
        if not self._client.is_connected:
            return {}
        answer, _ = self._client.request({"op": "stats", "group": self._group})
        return {int(stream): counts for stream, counts in answer.items()}

    def node_stats(self) -> Header:
        """Give the fetcher's own counts."""
        return self._client.request({"op": "stats"})[0] if self._client.is_connected else {}

    def close(self) -> None:
        """Leave; the last cache of the process hangs up."""
        with _sharing:
            self._client.leave(self._group)

    def _introduction(self) -> list[Header]:
        streams = [dump_stream(stream) for stream in self._streams]
        messages: list[Header] = [
            {"op": "register", "group": self._group, "streams": streams, "limit": self._limit_bytes}
        ]
        if self._plan:
            messages.append({"op": "expect", "group": self._group, "wants": self._plan})
        return messages


# --- A store in the memory of this process ------------------------------------------------------------------

_engine: Engine | None = None
_engine_users: set[int] = set()
_engines_lock = threading.Lock()


class LocalBackend:
    """Runs the same engine in this process."""

    def __init__(
        self,
        streams: Sequence[CachedStream],
        limit_bytes: int | None,
        on_warnings: Callable[[list[str]], None],
        on_share: Callable[[Share], None],
    ) -> None:
        global _engine
        from penstock.fetcher.scheduler import Engine

        self._key = os.getpid(), next(_group_numbers)
        with _engines_lock:
            if _engine is None:
                _engine = Engine()
                _engine_users.clear()
            self._engine = _engine
            _engine_users.add(self._key[1])
        warnings = self._engine.register(self._key, streams, limit_bytes, on_share)
        if warnings:
            on_warnings(warnings)

    @property
    def is_running(self) -> bool:
        """It always is."""
        return True

    def listen(self) -> None:
        """The engine says what it wants by itself."""

    def fetch(self, stream: int, item: Item, on_progress: Callable[[Header], None], *, is_urgent: bool) -> Header:
        """Bring an item and wait until it is there."""
        ticket = self._engine.ask(self._key, stream, item, is_urgent=is_urgent)
        try:
            while True:
                with suppress(FutureTimeoutError):
                    return self._answer(stream, ticket.future.result(_PROGRESS_S))
                if ticket.future.done():
                    return self._answer(stream, ticket.future.result())
                on_progress(self._engine.progress(ticket))
        finally:
            self._engine.withdraw(ticket)

    def _answer(self, stream: int, answer: Header) -> Header:
        notice = self._engine.take_notice(self._key, stream)
        return answer | ({"warnings": [notice]} if notice else {})

    def read(self, stream: int, places: Sequence[Place], edition: str, shards: Mapping[str, int]) -> list[bytes]:
        """Give objects, or ranges of them."""
        found = self._engine.read(self._key, stream, places, edition, shards).result()
        return [b"".join(pieces) for pieces in found]

    def expect(self, wants: Sequence[Want]) -> None:
        """Say what will be wanted."""
        self._engine.expect(self._key, wants)

    def released(self) -> None:
        """Say that a lease was closed."""
        self._engine.released()

    def taken(self, stream: int, identity: str) -> None:
        """Say that a lease was taken."""
        self._engine.taken(self._key, stream, identity)

    def caused(self) -> dict[int, list[int]]:
        """Give downloads and bytes by stream."""
        return self._engine.caused(self._key)

    def node_stats(self) -> Header:
        """Give the engine's counts."""
        return self._engine.stats()

    def close(self) -> None:
        """Leave; the engine ends with its last user."""
        global _engine
        self._engine.unregister(self._key)
        with _engines_lock:
            _engine_users.discard(self._key[1])
            if not _engine_users and _engine is self._engine:
                _engine = None
                self._engine.close()


_fresh = _Fresh()
abandon_in_children(_fresh)
