"""The fetcher serves everybody, whatever one of its clients waits for: its event loop never does."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from penstock.cache.connection import FetcherConnection, LostError
from penstock.cachedir.items import item_of_shard, resolved
from penstock.errors import FetcherError
from penstock.fetcher import server
from penstock.fetcher.main import open_scheduler
from penstock.fetcher.server import Server
from penstock.storage.retry import RetryPolicy
from penstock.types import Span
from penstock.wire.frames import PROTOCOL, load_error, pack_message
from penstock.wire.item import Want
from penstock.wire.messages import (
    CallStore,
    Expect,
    Fetch,
    GetStats,
    GetStreamCounts,
    Hello,
    LeaseAcquired,
    Message,
    Read,
    Register,
    Released,
    Unregister,
    load_answer,
)
from tests.cache.kit import Dataset, content, wait_until, write_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.fetcher.scheduler import Scheduler

A = TypeVar("A")
FAR_TOO_LONG_S = 60.0
GROUP = 7


@contextmanager
def serving(scheduler: Scheduler, path: Path) -> Iterator[None]:
    """A server in a thread of this process, so that a test can reach the locks behind it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    is_ready, is_over = threading.Event(), threading.Event()

    def run() -> None:
        asyncio.run(Server(scheduler, listener).run(is_ready.set, is_over.is_set))

    thread = threading.Thread(target=run)
    thread.start()
    assert is_ready.wait(FAR_TOO_LONG_S)
    try:
        yield
    finally:
        is_over.set()
        thread.join(FAR_TOO_LONG_S)
        scheduler.close()
        assert scheduler.join(FAR_TOO_LONG_S)


class Talker:
    """A client that says one thing after the other."""

    def __init__(self, path: Path) -> None:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connecting.connect(str(path))
        self.connection = FetcherConnection(connecting, FAR_TOO_LONG_S)
        self._number = 0

    def start(self, message: Message[Any]) -> int:
        self._number += 1
        self.connection.open_request(self._number)
        self.connection.send(message, self._number)
        return self._number

    def finish(self, number: int, message: Message[A]) -> tuple[A, bytes]:
        while True:
            answer, payload = self.connection.next_answer(number)
            if "error" in answer:
                raise load_error(answer["error"])
            if "ok" in answer:
                return load_answer(message, answer["ok"]), payload

    def ask(self, message: Message[A]) -> A:
        return self.finish(self.start(message), message)[0]

    def register(self, data: Dataset, limit_bytes: int | None = None) -> None:
        self.ask(Hello(PROTOCOL))
        self.ask(Register(GROUP, (resolved(data.stream()),), limit_bytes))

    def close(self) -> None:
        self.connection.close()
        self.connection.wait_closed()


@pytest.fixture
def scheduler() -> Scheduler:
    return open_scheduler()


@pytest.fixture
def door(scheduler: Scheduler, runtime: Path) -> Iterator[Path]:
    path = runtime / "s"
    with serving(scheduler, path):
        yield path


@contextmanager
def talking(path: Path) -> Iterator[Talker]:
    talker = Talker(path)
    try:
        yield talker
    finally:
        talker.close()


@contextmanager
def held(scheduler: Scheduler, data: Dataset) -> Iterator[None]:
    """Hold what an eviction from a directory holds, for as long as the test likes."""
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with scheduler._rooms.holding([str(data.local)]):
            is_held.set()
            may_end.wait(FAR_TOO_LONG_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(FAR_TOO_LONG_S)
    try:
        yield
    finally:
        may_end.set()
        thread.join()


def test_others_are_served_while_one_client_evicts(tmp_path: Path, scheduler: Scheduler, door: Path) -> None:
    slow, quick = write_dataset(tmp_path / "slow"), write_dataset(tmp_path / "quick")
    items = [item_of_shard(shard, number, "0e") for number, shard in enumerate(slow.infos)]
    with talking(door) as waiting, talking(door) as newcomer:
        waiting.register(slow, limit_bytes=250_000)
        with held(scheduler, slow):
            # Of the directory that is held, everything is asked that can be.
            fetching = Fetch(GROUP, 0, items[0], is_urgent=True)
            number = waiting.start(fetching)
            waiting.ask(LeaseAcquired(GROUP, 0, items[1].identity))
            waiting.ask(Released())
            waiting.ask(Expect(GROUP, tuple(Want(0, item, ahead, False) for ahead, item in enumerate(items))))
            registering = Register(GROUP + 1, (resolved(slow.stream()),), 200_000)
            another = waiting.start(registering)
            wait_until(lambda: scheduler.stats().in_flight)

            newcomer.register(quick, limit_bytes=10**6)
            wants = (Want(0, items[5], 0, is_present=False),)
            newcomer.ask(Expect(GROUP, wants))
            fetched = newcomer.ask(Fetch(GROUP, 0, items[1], is_urgent=True))
            assert (quick.local / fetched.name).read_bytes() == content(fetched.name, 100_000)
            reading = Read(GROUP, 0, ((items[2].name, Span(10, 20)),), "0e", {})
            _, data = newcomer.finish(newcomer.start(reading), reading)
            assert data == content(items[2].name, 100_000)[10:20]
            assert newcomer.ask(GetStats()).groups == 2
            newcomer.ask(GetStreamCounts(GROUP))  # what it caused may have been told already
            newcomer.ask(Unregister(GROUP))
            assert not slow.cached_names()
        assert waiting.finish(number, fetching)[0].num_downloaded == 100_000
        waiting.finish(another, registering)


def test_those_who_left_are_forgotten_once_what_they_said_is_done(
    tmp_path: Path, scheduler: Scheduler, door: Path
) -> None:
    data = write_dataset(tmp_path)
    with talking(door) as waiting:
        waiting.register(data)
        with held(scheduler, data):
            waiting.start(Register(GROUP + 1, (resolved(data.stream()),), 10**6))
            waiting.close()
            assert scheduler.stats().groups == 1
    wait_until(lambda: not scheduler.stats().groups)


# --- What makes no sense ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        {"op": "Fetch", "is": {"group": "one"}},
        {"op": "Fetch", "is": {"group": 1, "stream": 0, "item": [], "is_urgent": True}},
        {"op": "Fetch", "is": {"group": 1, "stream": 0, "item": [[], 1, 2, 3, 4, 5, 6], "is_urgent": True}},
        {"op": "Expect", "is": {"group": 1, "wants": [[0, None, 0, False]]}},
        {"op": "Expect", "is": {"group": 1, "wants": {}}},
        {"op": "Read", "is": {"group": 1, "stream": 0, "places": [["key"]], "edition": "", "shards": {}}},
        {"op": "Register", "is": {"group": 1, "streams": [{"url": "s3://secret"}], "limit_bytes": None}},
        {"op": "Hello", "is": {"protocol": 3, "more": 1}},
        {"op": "Hello", "is": {}},
        {"op": "Hello", "is": {"protocol": True}},
        {"op": "Hello"},
        {"op": "Nothing", "is": {}},
        {"op": None},
        {},
    ],
)
def test_a_request_that_makes_no_sense_is_answered_by_a_clear_error(door: Path, header: dict[str, Any]) -> None:
    with talking(door) as client:
        client.connection.open_request(1)
        client.connection._socket.sendall(pack_message({**header, "id": 1}))
        answer, _ = client.connection.next_answer(1)
        error = load_error(answer["error"])
        assert type(error) is FetcherError
        assert "secret" not in str(error)
        client.ask(Hello(PROTOCOL))  # it is served on


def test_a_message_that_is_nested_without_end_is_left_without_a_traceback(
    door: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = b"[" * 1_000_000
    with caplog.at_level("INFO"), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(FAR_TOO_LONG_S)
        client.connect(str(door))
        with suppress(ConnectionError):
            client.sendall(struct.pack("!IQ", len(text), 0) + text)
            assert client.recv(1) == b""
    with talking(door) as other:
        other.ask(Hello(PROTOCOL))
    assert "Traceback" not in caplog.text
    assert "not JSON" in caplog.text


@pytest.mark.parametrize("header", [{"op": "x" * 10**6}, {"op": "Hello", "id": "x" * 10**6}])
def test_what_a_client_sends_is_not_logged_in_full(
    door: Path, header: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(FAR_TOO_LONG_S)
        client.connect(str(door))
        client.sendall(pack_message(header))
        with suppress(ConnectionError):
            assert client.recv(1) == b""
    assert "a client disconnected" in caplog.text
    assert len(caplog.text) < 2000


def test_all_connections_together_are_bounded(door: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 2)
    with talking(door) as first, talking(door) as second:
        first.ask(Hello(PROTOCOL))
        second.ask(Hello(PROTOCOL))
        with talking(door) as third, pytest.raises(FetcherError, match="2 processes are connected"):
            third.ask(Hello(PROTOCOL))
        first.ask(GetStats())  # those who came before are served on


def test_requests_that_wait_are_bounded(
    tmp_path: Path, scheduler: Scheduler, door: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_MOST_REQUESTS", 3)
    data = write_dataset(tmp_path)
    with talking(door) as greedy, talking(door) as other:
        greedy.register(data)
        with held(scheduler, data):
            with pytest.raises(LostError):
                for number, shard in enumerate(data.infos):
                    greedy.start(Fetch(GROUP, 0, item_of_shard(shard, number, "0e"), is_urgent=True))
                greedy.connection.next_answer(greedy.start(GetStats()))
        monkeypatch.undo()
        other.register(data)  # others are served on
        other.ask(Fetch(GROUP, 0, item_of_shard(data.infos[0], 0, "0e"), is_urgent=True))


def test_large_messages_wait_for_each_other(door: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not go on coming gives its room back."""
    monkeypatch.setattr(server, "_MOST_LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(server, "_LARGE_S", 0.5)
    num_bytes = 1 << 20
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
        slow.connect(str(door))
        slow.sendall(struct.pack("!IQ", num_bytes, 0) + b"{")
        with talking(door) as client:
            client.connection.open_request(1)
            text = json.dumps({"op": "Hello", "id": 1, "is": {"protocol": PROTOCOL}}).encode().ljust(num_bytes)
            client.connection._socket.sendall(struct.pack("!IQ", num_bytes, 0) + text)
            answer, _ = client.connection.next_answer(1)
            assert "ok" in answer


@pytest.mark.parametrize("header", [{"op": "Nothing"}, {"op": "Expect", "is": 1}, {"op": "Hello", "id": "one"}])
def test_a_client_that_makes_no_sense_is_left(door: Path, header: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(FAR_TOO_LONG_S)
        client.connect(str(door))
        client.sendall(pack_message(header))
        with suppress(ConnectionError):
            assert client.recv(1) == b""


def test_another_protocol_is_refused(door: Path) -> None:
    with talking(door) as client, pytest.raises(FetcherError, match=f"protocol {PROTOCOL}, not 1"):
        client.ask(Hello(1))


def test_a_store_cannot_be_asked_for_just_anything(tmp_path: Path, door: Path) -> None:
    store = write_dataset(tmp_path).stream().store
    with talking(door) as client, pytest.raises(FetcherError, match="unknown store action 'format'"):
        client.ask(CallStore(store=store, retry=RetryPolicy(), action="format"))
