"""Through a bad network: the right bytes or a clear error, never a wrong byte, never a hang."""

from __future__ import annotations

import gc
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from tests.servers.faults import FAULTS, Fault, FaultProxy, Faults

from penstock.errors import ConfigError, StoreError
from penstock.storage.base import Store, open_store, resolve_store
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.nginx import WebServer
    from tests.servers.s3 import S3Server

# So many tries that a machine which is as slow as a stalled server for half a minute is no reason to give up.
PATIENT = RetryPolicy(attempts=100, base_s=0.01, max_s=0.05, stall_s=0.3, patience_s=2)
# Where nothing stalls and requests are counted: a machine that pauses is no reason to ask again.
UNHURRIED = replace(PATIENT, stall_s=30)
HARMLESS = tuple(kind for kind in FAULTS if kind != "flip")


def some_bytes(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


@pytest.fixture
def root(moto: S3Server, request: pytest.FixtureRequest) -> str:
    """A place of the test's own, the same on every run: what befalls a request depends on its name."""
    moto.make_bucket("faults")
    return f"s3://faults/{re.sub(r'[^a-z]+', '-', request.node.name)}"


@pytest.fixture
def proxy(moto: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(moto.endpoint) as proxy:
        yield proxy


def open_through(
    proxy: FaultProxy, moto: S3Server, root: str, policy: RetryPolicy = PATIENT, hooks: RetryHooks | None = None
) -> Store:
    settings = resolve_store(root, {**moto.options, "endpoint_url": proxy.url})
    return open_store(settings, retry=policy, hooks=hooks)


@pytest.mark.parametrize("kind", HARMLESS)
def test_each_fault_while_reading(kind: Fault, proxy: FaultProxy, moto: S3Server, root: str, tmp_path: Path) -> None:
    store = open_through(proxy, moto, root)
    data = some_bytes(1, 300_000)
    (tmp_path / "source").write_bytes(data)
    for number in range(8):
        store.upload(tmp_path / "source", str(number))
    proxy.faults = Faults(rate=0.3, kinds=(kind,), seed=3, slow_s=0.002)
    for number in range(8):
        piece, info = store.read_piece(str(number), Span(1000, 299_000))
        assert piece == data[1000:299_000]
        assert info.num_bytes == len(data)
        store.download(str(number), tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == data
        assert store.stat(str(number)).num_bytes == len(data)
    assert len(list(store.list())) == 8
    assert proxy.counts[kind] > 0


@pytest.mark.parametrize("kind", HARMLESS)
def test_each_fault_while_uploading(kind: Fault, proxy: FaultProxy, moto: S3Server, root: str, tmp_path: Path) -> None:
    store = open_through(proxy, moto, root)
    proxy.faults = Faults(rate=0.3, kinds=(kind,), seed=4, slow_s=0.002)
    for number in range(8):
        (tmp_path / "source").write_bytes(some_bytes(number, 200_000))
        store.upload(tmp_path / "source", str(number))
    assert proxy.counts[kind] > 0
    proxy.faults = Faults()
    assert [store.read(str(number)) for number in range(8)] == [some_bytes(number, 200_000) for number in range(8)]


def test_large_uploads_and_downloads_in_parts(proxy: FaultProxy, moto: S3Server, root: str, tmp_path: Path) -> None:
    data = some_bytes(5, 40 << 20)
    (tmp_path / "source").write_bytes(data)
    # Sending counts as silence, and a busy server is silent for long after the last byte of 8 MB.
    unhurried = open_through(proxy, moto, root, replace(UNHURRIED, patience_s=60))
    proxy.faults = Faults(rate=0.2, kinds=("drop", "reset", "busy", "cut"), seed=5)
    unhurried.upload(tmp_path / "source", "large")
    store = open_through(proxy, moto, root, replace(PATIENT, stall_s=1))
    proxy.faults = Faults(rate=0.2, kinds=("drop", "reset", "busy", "cut", "stall"), seed=5)
    store.download("large", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    assert store.read("large", Span(3, 30 << 20)) == data[3 : 30 << 20]
    assert proxy.counts["requests"] > 20


class FirstPartHangs(Faults):
    """The first part of an upload is not answered when it is sent first."""

    def choose(self, request: str, count: int) -> tuple[Fault | None, random.Random]:
        return ("stall" if "partNumber=1&" in request and count == 1 else None), random.Random(0)


def test_a_part_that_hangs_once_does_not_end_an_upload(
    proxy: FaultProxy, moto: S3Server, root: str, tmp_path: Path
) -> None:
    data = some_bytes(6, 18 << 20)
    (tmp_path / "source").write_bytes(data)
    proxy.faults = FirstPartHangs()
    open_through(proxy, moto, root, replace(PATIENT, patience_s=5)).upload(tmp_path / "source", "large")
    assert proxy.counts["stall"] > 0
    assert open_through(proxy, moto, root, UNHURRIED).read("large") == data


def test_a_flipped_bit_passes_a_store_and_is_left_to_digests(
    proxy: FaultProxy, moto: S3Server, root: str, tmp_path: Path
) -> None:
    store = open_through(proxy, moto, root, UNHURRIED)
    (tmp_path / "source").write_bytes(bytes(10_000))
    store.upload(tmp_path / "source", "x")
    proxy.faults = Faults(rate=1.0, kinds=("flip",))
    assert sum(byte.bit_count() for byte in store.read("x", Span(0, 10_000))) == 1


def test_two_hundred_objects_at_one_fault_in_five(proxy: FaultProxy, moto: S3Server, root: str, tmp_path: Path) -> None:
    retries: list[StoreError] = []
    store = open_through(proxy, moto, root, hooks=RetryHooks(on_retry=retries.append))
    contents = {f"folder/{number}": some_bytes(number, 1 + 97 * number) for number in range(200)}
    for key, data in contents.items():
        (tmp_path / "source").write_bytes(data)
        store.upload(tmp_path / "source", key)
    retries.clear()  # a busy machine may be as slow as a stalled server
    proxy.faults = Faults(rate=0.2, kinds=HARMLESS, seed=6, slow_s=0.001)
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(contents, pool.map(store.read, contents), strict=True))
    assert found == contents
    assert {info.key for info in store.list()} == set(contents)
    assert len(retries) > 20


@pytest.mark.parametrize("kind", ["reset", "cut", "short"])
def test_a_body_that_is_cut_goes_on_where_it_ended(
    kind: Fault, proxy: FaultProxy, moto: S3Server, root: str, tmp_path: Path
) -> None:
    store = open_through(proxy, moto, root, replace(UNHURRIED, attempts=100))
    data = some_bytes(8, 3_000_000)
    (tmp_path / "source").write_bytes(data)
    store.upload(tmp_path / "source", "x")
    proxy.faults = Faults(rate=0.9, kinds=(kind,), seed=1)
    before = proxy.counts["bytes"]
    assert store.read_piece("x", Span(0, len(data) - 1))[0] == data[:-1]
    assert proxy.counts[kind] > 0
    if kind != "reset":  # which loses what is being sent
        assert proxy.counts["bytes"] - before < len(data) + (1 << 20)


@contextmanager
def longest_pause() -> Iterator[list[float]]:
    """Measure for how long, at most, this machine stood still: then no process heard of any other."""
    paused, is_over = [0.0], threading.Event()

    def watch() -> None:
        before = time.monotonic()
        while not is_over.wait(0.05):
            before, elapsed = time.monotonic(), time.monotonic() - before
            paused[0] = max(paused[0], elapsed)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield paused
    finally:
        is_over.set()
        watcher.join()


def test_a_body_that_trickles_is_read_however_long_it_takes(
    proxy: FaultProxy, moto: S3Server, root: str, tmp_path: Path
) -> None:
    """Longer than the longest silence, and slower than any sum over a whole piece would allow."""
    retries: list[StoreError] = []
    policy = RetryPolicy(attempts=20, base_s=0.01, stall_s=4, patience_s=1)
    store = open_through(proxy, moto, root, policy, RetryHooks(on_retry=retries.append))
    data = some_bytes(10, 5_000)
    (tmp_path / "source").write_bytes(data)
    store.upload(tmp_path / "source", "x")
    retries.clear()
    proxy.faults = Faults(rate=1.0, kinds=("slow",), slow_s=0.15, slow_pieces=30)
    before = proxy.counts["requests"]
    with longest_pause() as paused:
        assert store.read_piece("x", Span(0, 5_000))[0] == data
    if paused[0] < policy.stall_s / 4:
        assert proxy.counts["requests"] == before + 1
        assert not retries


@pytest.mark.parametrize("kind", ["drop", "busy", "burst", "stall"])
def test_nothing_but_faults_is_an_error_with_its_cause(
    kind: Fault, proxy: FaultProxy, moto: S3Server, root: str, tmp_path: Path
) -> None:
    policy = RetryPolicy(attempts=3, base_s=0.01, max_s=0.1, stall_s=0.2, patience_s=0.5)
    store = open_through(proxy, moto, root, policy)
    (tmp_path / "source").write_bytes(some_bytes(7, 100_000))
    store.upload(tmp_path / "source", "x")
    proxy.faults = Faults(rate=1.0, kinds=(kind,), slow_s=0.5)
    with pytest.raises(StoreError, match=f"{root}/x"):
        store.read("x")
    with pytest.raises(StoreError, match=f"{root}/y"):
        store.upload(tmp_path / "source", "y")


def test_a_proxy_as_a_process_of_its_own_with_latency_and_a_limit(nginx: WebServer) -> None:
    (nginx.files / "limited").write_bytes(some_bytes(9, 300_000))
    command = [sys.executable, "-m", "tests.servers.faults", nginx.url, "--latency", "0.01", "--bandwidth", "3e6"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert open_store(url).read("limited") == some_bytes(9, 300_000)
        process.stdin.close()
        assert json.loads(process.stdout.read()) == {"requests": 1, "bytes": 300_000}


def test_a_proxy_that_ends_amid_requests_leaves_nothing_open(nginx: WebServer) -> None:
    """Whatever is not closed warns when it is collected, and warnings are errors."""
    (nginx.files / "stalled").write_bytes(bytes(1000))
    for _ in range(20):
        with FaultProxy(nginx.url, Faults(rate=1.0, kinds=("stall",))) as proxy:
            address = urlsplit(proxy.url)
            clients = [socket.create_connection((address.hostname, address.port)) for _ in range(10)]
            for client in clients:
                client.sendall(b"GET /stalled HTTP/1.1\r\nHost: x\r\n\r\n")
        for client in clients:
            client.close()
    gc.collect()


@pytest.mark.parametrize("wrong", [{"rate": 2.0}, {"kinds": ("gremlins",)}, {"kinds": ()}])
def test_faults_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Faults(**wrong)
