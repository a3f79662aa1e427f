"""Messages that make no sense, beside a job that does: the fetcher serves the job on, in bounded memory."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cachedir.items import item_of_shard, resolved
from penstock.errors import FetcherError
from penstock.fetcher.main import BoundedLog
from penstock.storage.retry import RetryPolicy
from penstock.types import Span
from penstock.wire.address import fetcher_address
from penstock.wire.frames import PROTOCOL, _encoder
from penstock.wire.item import Want
from penstock.wire.messages import (
    CallStore,
    Expect,
    Fetch,
    GetStats,
    GetStreamCounts,
    Hello,
    LeaseAcquired,
    Read,
    Register,
    Released,
    Unregister,
    Withdraw,
    dump_message,
    load_message,
)
from tests.cache.kit import Dataset, check_shard, fetcher_pids, finish, start_client, write_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

_ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    "",
    "x" * 5000,
    "../../etc",
    [],
    {},
    [[]],
    {"a": {}},
    "\ud800",
    "s3://a b",
)
_MANY = pytest.mark.soak


def honest_messages(data: Dataset) -> list[dict[str, Any]]:
    """One of each kind, as it travels."""
    item, store = item_of_shard(data.infos[0], 0, "0e"), data.stream().store
    messages: list[Any] = [
        Hello(PROTOCOL),
        Register(7, (resolved(data.stream()),), 10**6),
        Expect(7, (Want(0, item, 0, is_present=False),)),
        Fetch(7, 0, item, is_urgent=True),
        Read(7, 0, ((item.name, Span(0, 9)),), "0e", {item.name: 0}),
        CallStore(store=store, retry=RetryPolicy(), action="read", key="index.json"),
        LeaseAcquired(7, 0, item.identity),
        Released(),
        GetStats(),
        GetStreamCounts(7),
        Withdraw(3),
        Unregister(7),
    ]
    return [json.loads(_encoder.encode(dump_message(message, 1))) for message in messages]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something can be changed."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def mutated(message: dict[str, Any], rng: random.Random) -> bytes:
    """A message with one to three odd values in it, or odd bytes."""
    value = json.loads(json.dumps(message))
    for _ in range(rng.randint(1, 3)):
        *path, last = rng.choice([path for path in places(value) if path])
        inner = value
        for key in path:
            inner = inner[key]
        if rng.random() < 0.2 and isinstance(inner, dict):
            del inner[last]
        else:
            inner[last] = json.loads(json.dumps(rng.choice(_ODD)))
    data = bytearray(json.dumps(value).encode())
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def nested(depth: int) -> bytes:
    return b'{"op":"Hello","id":1,"is":' + b"[" * depth + b"]" * depth + b"}"


def frames(message: dict[str, Any], rng: random.Random) -> bytes:
    """What is sent: mostly a whole frame, sometimes one that promises too much or is cut."""
    kind = rng.random()
    text = nested(rng.choice((10, 100_000))) if kind < 0.02 else mutated(message, rng)
    if kind > 0.97:
        return struct.pack("!IQ", rng.choice((2**32 - 1, 200 << 20)), 0) + text
    if kind > 0.94:
        return struct.pack("!IQ", len(text), rng.choice((1, 2**60))) + text
    return struct.pack("!IQ", len(text), 0) + text


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="memory of another process")
@pytest.mark.parametrize("count", [200, pytest.param(20_000, marks=_MANY)])
def test_a_job_is_served_on_beside_hostile_messages(tmp_path: Path, count: int, runtime: Path) -> None:
    rng = random.Random(count)
    data, other = write_dataset(tmp_path / "job"), write_dataset(tmp_path / "hostile")
    messages = honest_messages(other)
    is_over = threading.Event()
    read = 0
    with data.cache() as cache:
        check_shard(cache, 0)
        (pid,) = fetcher_pids(runtime)
        before = resident_bytes(pid)

        def attack() -> None:
            try:
                for _ in range(count):
                    with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
                        client.settimeout(0.01 if count < 1000 else 0.001)
                        client.connect(os.fspath(fetcher_address().socket))
                        for _ in range(rng.randint(1, 3)):
                            client.sendall(frames(rng.choice(messages), rng))
                        client.recv(1 << 16)
            finally:
                is_over.set()

        attacker = threading.Thread(target=attack)
        attacker.start()
        while not is_over.is_set():
            for shard in data.shards:
                check_shard(cache, shard)
                read += 1
            for path in data.local.glob("shard.*"):
                path.unlink()  # they are fetched again
        attacker.join()
        for shard in data.shards:
            check_shard(cache, shard)
        assert fetcher_pids(runtime) == [pid]
        assert resident_bytes(pid) - before < 150 << 20
        log = fetcher_address().log.read_text()
    assert read >= len(data.shards)
    assert len(log) < 17 << 20
    assert "Traceback" not in log, log[-3000:]
    assert "RecursionError" not in log


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=_MANY)])
def test_a_message_is_understood_or_refused(tmp_path: Path, count: int) -> None:
    rng = random.Random(count)
    messages = honest_messages(write_dataset(tmp_path))
    refused = 0
    for _ in range(count):
        try:
            header = json.loads(mutated(rng.choice(messages), rng))
        except ValueError:
            continue
        problem = ""
        try:
            load_message(header)
        except FetcherError as error:
            problem = str(error)
        assert len(problem) < 1000
        refused += bool(problem)
    assert refused > count // 4


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_no_core_dump_holds_what_the_fetcher_knows(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache() as cache:
        check_shard(cache, 0)
        (pid,) = fetcher_pids(runtime)
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert ["Max", "core", "file", "size", "0", "0"] in [line.split()[:6] for line in limits.splitlines()]
        os.kill(pid, signal.SIGABRT)
        check_shard(cache, 1)  # by another one
    code = (
        "import ctypes; from penstock.fetcher.main import keep_memory_private; keep_memory_private();"
        " print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"  # PR_GET_DUMPABLE, which no other process can ask
    )
    assert finish(start_client(code)).strip() == "0"


def test_a_log_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.fetcher.main._MOST_LOG_BYTES", 100_000)
    import logging

    path = tmp_path / "log"
    with path.open("a") as file:
        log = BoundedLog(file)
        for number in range(100):
            log.handle(logging.LogRecord("a", logging.INFO, "", 0, f"{number} " + "x" * 10**6 + " end", None, None))
    text = path.read_text()
    assert len(text) < 110_000
    assert "99 xxx" in text
    assert text.endswith("xx end\n")
