"""A bad network on purpose: a proxy for HTTP that loses, delays, cuts and falsifies, as often as it is told.

What befalls a request depends on the seed, on the request and on how often it came, not on the clock: a run with many
connections can be repeated.

```python
with FaultProxy("http://127.0.0.1:5000", Faults(rate=0.2, kinds=("reset", "stall"))) as proxy:
    read_everything_from(proxy.url)
    print(proxy.counts)
```

`python -m tests.servers.faults URL --rate 0.2` runs one as a process of its own and prints its address.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
import threading
import weakref
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import urlsplit

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

Fault = Literal["drop", "reset", "busy", "burst", "stall", "slow", "flip", "cut", "short"]
FAULTS: tuple[Fault, ...] = get_args(Fault)

_BLOCK = 1 << 16
_BURST = 3
_HEAD_LIMIT = 1 << 16
_BUSY_BODY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How bad the network is.

    - drop: the answer never comes, the connection closes; the server may have done what it was asked to
    - reset: the connection breaks in mid-body
    - busy, burst: 503 with Retry-After, once or for the next three requests
    - stall: nothing more comes in mid-body, the connection stays open
    - slow: the body trickles
    - flip: one bit of the body is another
    - cut: the body ends early; short: the same, with a Content-Length to match
    """

    rate: float = 0.0  # share of the requests that something befalls
    kinds: tuple[Fault, ...] = FAULTS
    seed: int = 0
    stall_s: float = 3600.0
    slow_s: float = 0.05  # between pieces of a trickling body
    slow_pieces: int = 20
    retry_after_s: float | None = 1.0
    latency_s: float = 0.0  # of every request
    bytes_per_s: float | None = None  # of all bodies together, in either direction

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ConfigError(f"rate={self.rate} is no share: use 0 to 1")
        unknown = set(self.kinds) - set(FAULTS)
        if unknown or not self.kinds:
            raise ConfigError(f"unknown faults {sorted(unknown)}: use one of {', '.join(FAULTS)}")

    def choose(self, request: str, count: int) -> tuple[Fault | None, random.Random]:
        """Return what befalls the `count`-th request of this kind, and give the source of its details."""
        draw = random.Random(f"{self.seed}|{request}|{count}")
        return (draw.choice(self.kinds) if draw.random() < self.rate else None), draw


@dataclass(slots=True)
class _Head:
    """The first lines of a request or an answer."""

    start: bytes
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    @classmethod
    async def read(cls, reader: asyncio.StreamReader) -> _Head | None:
        try:
            raw = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None  # the other side is done
        start, *lines = raw[:-4].split(b"\r\n")
        pairs = (line.partition(b":") for line in lines)
        return cls(start, [(name.strip(), value.strip()) for name, _, value in pairs])

    def get(self, name: str) -> str:
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == name.encode()), "")

    def put(self, name: str, value: str | None) -> None:
        self.headers = [(key, old) for key, old in self.headers if key.lower() != name.encode()]
        if value is not None:
            self.headers.append((name.encode(), value.encode("latin-1")))

    def encode(self) -> bytes:
        return b"\r\n".join([self.start, *(name + b": " + value for name, value in self.headers)]) + b"\r\n\r\n"

    @property
    def length(self) -> int:
        return int(self.get("content-length") or 0)


class _GoneError(Exception):
    """This connection is over."""


class FaultProxy:
    """Stands between a client and the server at `target`, in a thread of its own, while it is open."""

    def __init__(self, target: str, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()  # may be replaced at any time
        self.counts: Counter[str] = Counter()  # requests, bytes, and each fault by name
        self.url = ""
        self._target = urlsplit(target)
        self._seen: Counter[str] = Counter()
        self._burst_left = 0
        self._free_at = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._open: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._port = 0
        self._serving: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def go_away(self) -> None:
        """Hang up on all clients and refuse new ones, as a server that is down."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()

    def come_back(self) -> None:
        """Listen again where it did before."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._serving = asyncio.current_task()
        with socket.socket() as reserved:  # keeps the port for us while no server listens there
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", 0))
            self._port = reserved.getsockname()[1]
            self.url = self._target._replace(netloc=f"127.0.0.1:{self._port}").geturl()
            await self._listen()
            self._started.set()
            await self._stop.wait()
            await self._close()

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._begin, "127.0.0.1", self._port, limit=_HEAD_LIMIT)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        task = asyncio.ensure_future(self._converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self) -> None:
        if self._server is None:
            return
        # The loop's own tasks bring connections just accepted to `begin`: cut short, they would leave them open.
        while asyncio.all_tasks() - self._tasks - {asyncio.current_task(), self._serving}:
            await asyncio.sleep(0)
        self._server.close()
        self._server = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for writer in self._open:  # a task that has not begun closes nothing, and a silent peer lets no writer close
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # connections close in the next turn of the loop

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the requests of one connection."""
        try:
            while (head := await _Head.read(reader)) is not None:
                await self._answer(head, reader, writer)
        except (_GoneError, ConnectionError, asyncio.IncompleteReadError):
            pass  # as networks do
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, request: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault, draw = self._choose(request)
        await asyncio.sleep(self.faults.latency_s)
        if request.get("expect"):
            request.put("expect", None)
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if fault in ("busy", "burst"):
            await self._read_away(reader, request.length)
            writer.write(self._busy())
            await writer.drain()
            return
        upstream, downstream = await asyncio.open_connection(
            self._target.hostname, self._target.port, limit=_HEAD_LIMIT
        )
        self._open.add(downstream)
        try:
            await self._exchange(fault, draw, request, (reader, writer), (upstream, downstream))
        finally:
            downstream.close()

    async def _exchange(
        self,
        fault: Fault | None,
        draw: random.Random,
        request: _Head,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Carry one request there and its answer back; what befalls an upload befalls its way there."""
        is_upload = request.length > 0
        server[1].write(request.encode())
        await self._carry(
            fault if is_upload and fault != "short" else None, draw, request.length, client[0], server[1], client[1]
        )
        answer = await _Head.read(server[0])
        if answer is None:
            raise _GoneError
        has_body = not request.start.startswith(b"HEAD ") and answer.start.split(b" ")[1] not in (b"204", b"304")
        if fault == "drop" or (is_upload and fault == "short") or (fault in ("reset", "cut") and not has_body):
            raise _GoneError  # what was asked for is done, and no client hears of it
        body_fault = None if is_upload or not has_body else fault
        source, length = server[0], answer.length if has_body else 0
        if has_body and answer.get("transfer-encoding"):
            source, length = await _dechunked(source)
            answer.put("transfer-encoding", None)
            answer.put("content-length", str(length))
        elif has_body and not answer.get("content-length"):
            source, length = _as_reader(await server[0].read())
            answer.put("content-length", str(length))
        answer.put("connection", None)
        if body_fault == "short":
            length = draw.randrange(length) if length else 0
            answer.put("content-length", str(length))
            body_fault = None
        client[1].write(answer.encode())
        await self._carry(body_fault, draw, length, source, client[1], client[1])

    async def _carry(
        self,
        fault: Fault | None,
        draw: random.Random,
        length: int,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
    ) -> None:
        """Carry a body, with a fault at a random place of it."""
        place = draw.randrange(length) if fault is not None and length else length
        await self._move(place, source, sink)
        if fault is None:
            return
        if fault == "reset":
            _reset(client)
        if fault in ("reset", "cut"):
            raise _GoneError
        if fault == "stall":
            await asyncio.sleep(self.faults.stall_s)
            raise _GoneError
        left = length - place
        if fault == "flip" and left:
            byte = await source.readexactly(1)
            sink.write(bytes([byte[0] ^ (1 << draw.randrange(8))]))
            left -= 1
        if fault == "slow":
            step = max(1, left // self.faults.slow_pieces)
            while left:
                await self._move(min(step, left), source, sink)
                left -= min(step, left)
                await asyncio.sleep(self.faults.slow_s)
        await self._move(left, source, sink)

    async def _move(self, length: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while length:
            block = await source.read(min(length, _BLOCK))
            if not block:
                raise _GoneError
            await self._throttle(len(block))
            self.counts["bytes"] += len(block)  # before a client has them: a reader of the count may be quicker than we
            sink.write(block)
            await sink.drain()
            length -= len(block)
        await sink.drain()

    async def _throttle(self, num_bytes: int) -> None:
        """Wait until the limit of all connections together lets these bytes pass."""
        if self.faults.bytes_per_s is None:
            return
        now = self._loop.time()
        self._free_at = max(self._free_at, now) + num_bytes / self.faults.bytes_per_s
        if self._free_at > now + 0.005:  # shorter sleeps would not be kept
            await asyncio.sleep(self._free_at - now)

    async def _read_away(self, reader: asyncio.StreamReader, length: int) -> None:
        while length:
            length -= len(await reader.readexactly(min(length, _BLOCK)))

    def _choose(self, request: _Head) -> tuple[Fault | None, random.Random]:
        name = f"{request.start.decode('latin-1')} {request.get('range')}"
        self._seen[name] += 1
        self.counts["requests"] += 1
        fault, draw = self.faults.choose(name, self._seen[name])
        if self._burst_left:
            self._burst_left -= 1
            fault = "busy"
        elif fault == "burst":
            self._burst_left = _BURST - 1
        if fault is not None:
            self.counts[fault] += 1
        return fault, draw

    def _busy(self) -> bytes:
        head = _Head(b"HTTP/1.1 503 Service Unavailable")
        if self.faults.retry_after_s is not None:
            head.put("retry-after", f"{self.faults.retry_after_s:g}")
        head.put("content-type", "application/xml")
        head.put("content-length", str(len(_BUSY_BODY)))
        return head.encode() + _BUSY_BODY


def _reset(writer: asyncio.StreamWriter) -> None:
    """Make closing this connection break it instead of ending it."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _dechunked(reader: asyncio.StreamReader) -> tuple[asyncio.StreamReader, int]:
    """Read a body that came in chunks."""
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    return _as_reader(body)


def _as_reader(body: bytes) -> tuple[asyncio.StreamReader, int]:
    reader = asyncio.StreamReader()
    reader.feed_data(body)
    reader.feed_eof()
    return reader, len(body)


def main() -> None:
    """Run a proxy until its input ends; the first line of output is its address, the last what it did."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target", help="URL of the server")
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--kinds", nargs="+", default=list(FAULTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds, of every request")
    parser.add_argument("--bandwidth", type=float, default=None, help="bytes per second, of all connections together")
    chosen = parser.parse_args()
    faults = Faults(
        rate=chosen.rate,
        kinds=tuple(chosen.kinds),
        seed=chosen.seed,
        latency_s=chosen.latency,
        bytes_per_s=chosen.bandwidth,
    )
    with FaultProxy(chosen.target, faults) as proxy:
        print(proxy.url, flush=True)
        sys.stdin.read()
    print(json.dumps(proxy.counts))  # every connection has ended: nothing is counted any more


if __name__ == "__main__":
    main()
