"""Serves the engine over a local socket: one connection a process, any number of groups and requests on it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import FetcherError, PenstockError
from penstock.failpoints import reach
from penstock.fetcher.errands import run_errand
from penstock.fetcher.queue import Want
from penstock.types import Span
from penstock.wire.address import check_peer
from penstock.wire.frames import (
    PREFIX_BYTES,
    PROTOCOL,
    Header,
    dump_error,
    pack_message,
    unpack_header,
    unpack_prefix,
)
from penstock.wire.item import load_item
from penstock.wire.settings import load_stream
from penstock.wire.share import dump_share

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from penstock.fetcher.scheduler import Engine
    from penstock.wire.share import Share

_log = logging.getLogger("penstock.cache")
PROGRESS_S = 1.0
FIRST_CLIENT_S = 5.0
GRACE_S = 0.5


class Server:
    """Lives while anybody is connected, and a little longer: a pool of processes may come back at once."""

    def __init__(self, engine: Engine, listener: socket.socket) -> None:
        self._engine = engine
        self._listener = listener
        self._clients: set[int] = set()
        self._numbers = itertools.count()
        self._idle_since = time.monotonic() + FIRST_CLIENT_S - GRACE_S
        self._changed = asyncio.Event()

    async def run(self, on_ready: Callable[[], None], may_leave: Callable[[], bool]) -> None:
        """Serve until nobody has been connected for a while and `may_leave` agrees."""
        server = await asyncio.start_unix_server(self._serve, sock=self._listener)
        on_ready()
        while True:
            self._changed.clear()
            left = None if self._clients else self._idle_since + GRACE_S - time.monotonic()
            if left is not None and left <= 0:
                if may_leave():
                    break
                left = GRACE_S
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                continue
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = next(self._numbers)
        self._clients.add(client)
        self._changed.set()
        connection = _Connection(self._engine, client, reader, writer)
        try:
            check_peer(writer.get_extra_info("socket"))
            await connection.run()
        except (FetcherError, ConnectionError, asyncio.IncompleteReadError) as error:
            _log.info("a client left: %s", error)
        finally:
            connection.close()
            await asyncio.get_running_loop().run_in_executor(None, self._engine.drop_client, client)
            self._clients.discard(client)
            self._idle_since = time.monotonic()
            self._changed.set()


class _Connection:
    def __init__(self, engine: Engine, client: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._engine = engine
        self._client = client
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._shares: dict[int, Share] = {}  # to be told; of several for one group the last one counts
        self._is_telling = False

    async def run(self) -> None:
        """Take messages until the client leaves. Those that change the books are done in order."""
        while True:
            header = await self._receive()
            if header is None:
                return
            operation = str(header.get("op"))
            if operation in _SLOW:
                self._start_request(header, getattr(self, f"_{operation}"))
            elif operation in _QUICK:
                await self._answer(header, getattr(self, f"_{operation}"))
            else:
                raise FetcherError(f"a client asked for {operation!r}, which does not exist")

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._writer.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _start_request(self, header: Header, act: Callable[[Header], Coroutine[Any, Any, Any]]) -> None:
        number = int(header["id"])
        self._requests[number] = self._start(self._answer(header, act))
        self._requests[number].add_done_callback(lambda _: self._requests.pop(number, None))

    async def _receive(self) -> Header | None:
        try:
            prefix = await self._reader.readexactly(PREFIX_BYTES)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return None
        num_header, num_payload = unpack_prefix(prefix)
        header = unpack_header(await self._reader.readexactly(num_header))
        if num_payload:
            raise FetcherError("a client sent bytes that nobody asked for")
        return header

    async def _send(self, header: Header, payload: list[Any] | None = None) -> None:
        total = sum(memoryview(data).nbytes for data in payload or ())
        async with self._sending:
            self._writer.write(pack_message(header, total))
            for data in payload or ():
                self._writer.write(data if isinstance(data, bytes) else memoryview(data).cast("B"))
                await self._writer.drain()
            await self._writer.drain()

    async def _answer(self, header: Header, act: Callable[[Header], Coroutine[Any, Any, Any]]) -> None:
        """Do one thing and reply, if the client waits for a reply."""
        number = header.get("id")
        try:
            payload = None
            reply = await act(header)
            if isinstance(reply, tuple):
                reply, payload = reply
            if number is not None:
                await self._send({"id": number, "ok": reply}, payload)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001  it goes to whoever asked
            if not isinstance(error, PenstockError):
                _log.exception("a request failed")
            if number is not None:
                await self._send({"id": number, "error": dump_error(error)})

    # --- Unasked --------------------------------------------------------------------------------------------

    def _tell_share(self, group: int, share: Share) -> None:
        """Say what a group may keep open, once the client takes it; nobody waits for that."""
        self._shares[group] = share
        if not self._is_telling:
            self._is_telling = True
            self._start(self._tell_shares())

    async def _tell_shares(self) -> None:
        try:
            while self._shares:
                group = next(iter(self._shares))
                await self._send({"group": group, "share": dump_share(self._shares.pop(group))})
        except ConnectionError as error:
            _log.info("a client left before it was told its share: %s", error)
        finally:
            self._is_telling = False

    def _group(self, header: Header) -> tuple[int, int]:
        return self._client, int(header["group"])

    # --- In order -------------------------------------------------------------------------------------------

    async def _hello(self, header: Header) -> Header:
        if header.get("protocol") != PROTOCOL:
            raise FetcherError(f"the fetcher speaks protocol {PROTOCOL}, not {header.get('protocol')}")
        return {"protocol": PROTOCOL}

    async def _register(self, header: Header) -> Header:
        reach("register.before")
        streams = [load_stream(value) for value in header["streams"]]
        loop = asyncio.get_running_loop()
        group = self._group(header)

        def on_share(share: Share) -> None:
            with suppress(RuntimeError):  # the loop has ended, and with it all clients
                loop.call_soon_threadsafe(self._tell_share, group[1], share)

        warnings = await loop.run_in_executor(None, self._engine.register, group, streams, header["limit"], on_share)
        return {"warnings": warnings}

    async def _unregister(self, header: Header) -> Header:
        self._engine.unregister(self._group(header))
        return {}

    async def _expect(self, header: Header) -> Header:
        wants = [Want(stream, load_item(item), ahead, there) for stream, item, ahead, there in header["wants"]]
        self._engine.expect(self._group(header), wants)
        return {}

    async def _released(self, header: Header) -> Header:  # noqa: ARG002
        self._engine.released()
        return {}

    async def _taken(self, header: Header) -> Header:
        self._engine.taken(self._group(header), header["stream"], header["identity"])
        return {}

    async def _withdraw(self, header: Header) -> Header:
        task = self._requests.get(int(header["request"]))
        if task is not None:
            task.cancel()
        return {}

    async def _stats(self, header: Header) -> Header:
        if "group" in header:
            return {str(stream): counts for stream, counts in self._engine.caused(self._group(header)).items()}
        return self._engine.stats()

    # --- At leisure -----------------------------------------------------------------------------------------

    async def _fetch(self, header: Header) -> Header:
        ticket = self._engine.ask(
            self._group(header), header["stream"], load_item(header["item"]), is_urgent=header["urgent"]
        )
        future = asyncio.wrap_future(ticket.future)
        try:
            while not (await asyncio.wait({future}, timeout=PROGRESS_S))[0]:
                await self._send({"id": header["id"], "progress": self._engine.progress(ticket)})
            # An error would say the same, and more.
            notice = self._engine.take_notice(self._group(header), header["stream"])
            return future.result() | ({"warnings": [notice]} if notice else {})
        finally:
            self._engine.withdraw(ticket)

    async def _read(self, header: Header) -> tuple[Header, list[Any]]:
        places = [(key, Span(*bounds) if bounds else None) for key, *bounds in header["places"]]
        asked = self._engine.read(self._group(header), header["stream"], places, header["edition"], header["shards"])
        future = asyncio.wrap_future(asked)
        while not (await asyncio.wait({future}, timeout=PROGRESS_S))[0]:
            await self._send({"id": header["id"], "progress": {}})
        found = future.result()
        sizes = [sum(memoryview(piece).nbytes for piece in pieces) for pieces in found]
        return {"sizes": sizes}, [piece for pieces in found for piece in pieces]

    async def _store(self, header: Header) -> Any:
        is_over = threading.Event()
        run = asyncio.get_running_loop().run_in_executor(
            _errands, run_errand, header["store"], header["action"], header["arguments"], is_over
        )
        try:
            while not (await asyncio.wait({run}, timeout=PROGRESS_S))[0]:
                await self._send({"id": header["id"], "progress": {}})
            values, data = run.result()
        finally:
            is_over.set()
        return (values, [data]) if data else values


# Uploads of several writers side by side; each one is itself sent in parts.
_errands = ThreadPoolExecutor(16, thread_name_prefix="penstock-errand")
_QUICK = {"hello", "register", "unregister", "expect", "released", "taken", "withdraw", "stats"}
_SLOW = {"fetch", "read", "store"}
