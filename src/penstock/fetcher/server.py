"""Serves the scheduler over a local socket: one connection a process, any number of groups and requests on it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import threading
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.errors import FetcherError, PenstockError
from penstock.failpoints import failpoint
from penstock.storage.base import HasCommits, check_writable, open_store
from penstock.storage.retry import RetryHooks
from penstock.threads import WorkerThreads
from penstock.wire import frames, messages
from penstock.wire.address import check_peer

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from typing_extensions import Buffer

    from penstock.errors import StoreError
    from penstock.storage.base import Store

T = TypeVar("T")

_log = logging.getLogger("penstock.cache")
PROGRESS_S = 1.0
FIRST_CLIENT_S = 5.0
GRACE_S = 0.5
_MOST_STORE_CALLS = 16  # uploads of several writers side by side; each one is itself sent in parts
_MOST_CLIENTS = 1024  # whose messages are done at the same moment
_LARGE_BYTES = 64 << 10  # of a message that takes long to decode
# Of all connections together, so that no number of them takes the memory of the node.
_MOST_CONNECTIONS = 4096
_MOST_REQUESTS = 1 << 16  # that wait for an answer
_MOST_LARGE_BYTES = frames.MAX_HEADER_BYTES  # of large messages that are being received and understood
_REST_S = 2.0  # how long a thread waits for more work before it ends
_LARGE_S = 60.0  # for which a large message may be coming: others wait for its room


class Desk(Protocol):
    """What does the things that clients ask for, which may be any number of groups and requests each."""

    def do(self, client: int, message: messages.Message[Any], on_update: Callable[[messages.GroupUpdate], None]) -> Any:
        """Return the answer, a `Pending` one, or None if there is nothing to say; `on_update` must not wait."""

    def drop_client(self, client: int) -> None:
        """Forget all groups of a client."""


class Server:
    """Lives while clients are connected, and a little longer: a pool of processes may come back at once."""

    def __init__(self, desk: Desk, listener: socket.socket) -> None:
        self.desk = desk
        self._listener = listener
        self._clients: set[int] = set()
        self.load = Load()
        self._numbers = itertools.count()
        self._idle_since = time.monotonic() + FIRST_CLIENT_S - GRACE_S
        self._changed = asyncio.Event()
        self.store_threads = WorkerThreads(_MOST_STORE_CALLS, "penstock-store", _REST_S)
        # Each client has one of these at most, while it needs it: a directory on a slow disk holds up only those who
        # use it.
        self.client_threads = WorkerThreads(_MOST_CLIENTS, "penstock-client", _REST_S)

    async def run(self, on_ready: Callable[[], None], may_leave: Callable[[], bool]) -> None:
        """Serve until no client has been connected for a while and `may_leave` agrees."""
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
        self.client_threads.shutdown(cancel_futures=False)
        self.store_threads.shutdown()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = next(self._numbers)
        self._clients.add(client)
        self.load.num_connections += 1
        self._changed.set()
        connection = Connection(self, client, reader, writer)
        try:
            check_peer(writer.get_extra_info("socket"))
            await connection.run()
        except (FetcherError, ConnectionError, asyncio.IncompleteReadError) as error:
            _log.info("a client disconnected: %s", error)
        finally:
            await connection.close()
            self._clients.discard(client)
            self.load.num_connections -= 1
            self._idle_since = time.monotonic()
            self._changed.set()


class Load:
    """What all connections together have open."""

    def __init__(self) -> None:
        self.num_connections = self.num_requests = 0
        self._large_bytes = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def large_message(self, num_bytes: int) -> AsyncIterator[None]:
        """Wait until there is room for a large message, and keep it while the message is taken in."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._large_bytes + num_bytes <= _MOST_LARGE_BYTES)
            self._large_bytes += num_bytes
        try:
            yield
        finally:
            async with self._changed:
                self._large_bytes -= num_bytes
                self._changed.notify_all()


_Received = tuple["messages.Message[Any] | FetcherError", "int | None"]


def _understand(data: bytes) -> _Received:
    """Return a message, and its number if it is a request; instead of a request that makes no sense, what to answer."""
    # What comes is no garbage: the collector would look through a large plan over and over again.
    is_collecting = gc.isenabled() and len(data) >= _LARGE_BYTES
    if is_collecting:
        gc.disable()
    try:
        header = frames.unpack_header(data)
        try:
            return messages.load_message(header)
        except FetcherError as error:
            if type(header.get("id")) is not int:
                raise
            return error, header["id"]
    finally:
        if is_collecting:
            gc.enable()


class Connection:
    """One client at the other end of a socket."""

    def __init__(self, server: Server, client: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._client = client
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._sending, self._turn = asyncio.Lock(), asyncio.Lock()
        self._tasks: dict[object, asyncio.Task[None]] = {}  # those that answer a request by its number
        self._waiting: dict[int | None, Callable[[], messages.Progress]] = {}  # by request: what says how far it is
        self._updates: dict[int, messages.GroupUpdate] = {}  # to be told, by group
        self._is_telling = False
        self._is_reporting = False

    async def run(self) -> None:
        """Take messages until the client leaves. Those that change the books are done in order."""
        while (received := await self._receive()) is not None:
            message, number = received
            if isinstance(message, FetcherError):
                await self._send({"id": number, "error": frames.dump_error(message)})
            elif isinstance(message, _ASIDE):
                self._start(self._answer(message, number), number)
                await asyncio.sleep(0)  # it takes its turn, if it needs one, before what comes next
            else:
                await self._answer(message, number)

    async def close(self) -> None:
        """Forget the client, once its last message is done."""
        for task in self._tasks.values():
            task.cancel()
        self._writer.close()
        await self._in_turn(self._server.desk.drop_client, self._client)

    async def _in_turn(self, action: Callable[..., Any], *arguments: object) -> Any:
        """Do what may take long; what comes later waits for it, so that a client's messages are done in order."""
        async with self._turn:
            return await self._loop.run_in_executor(self._server.client_threads, action, *arguments)

    def _start(self, work: Coroutine[Any, Any, None], number: int | None = None) -> None:
        if self._server.load.num_requests >= _MOST_REQUESTS:
            work.close()
            raise FetcherError(f"more than {_MOST_REQUESTS} requests wait for answers")
        name = object() if number is None else number
        if name in self._tasks:
            work.close()
            raise FetcherError(f"two requests have the number {number}")
        self._server.load.num_requests += 1
        self._tasks[name] = self._loop.create_task(work)
        self._tasks[name].add_done_callback(partial(self._end, name))

    def _end(self, name: object, task: asyncio.Task[None]) -> None:
        self._server.load.num_requests -= 1
        self._tasks.pop(name, None)
        if not task.cancelled() and isinstance(task.exception(), ConnectionError):
            _log.info("a client disconnected before it was answered: %s", task.exception())

    async def _receive(self) -> _Received | None:
        try:
            prefix = await self._reader.readexactly(frames.PREFIX_BYTES)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return None
        num_header, num_payload = frames.unpack_prefix(prefix)
        if num_payload:
            raise FetcherError("a client sent bytes that were not requested")
        if num_header < _LARGE_BYTES:
            return _understand(await self._reader.readexactly(num_header))
        async with self._server.load.large_message(num_header):
            try:
                data = await asyncio.wait_for(self._reader.readexactly(num_header), _LARGE_S)
            except asyncio.TimeoutError:
                raise FetcherError(f"a message of {num_header} bytes did not come within {_LARGE_S:g} s") from None
            received: _Received = await self._in_turn(_understand, data)
            return received

    async def _send(self, header: frames.Header, payload: Sequence[Buffer] = ()) -> None:
        total = sum(memoryview(data).nbytes for data in payload)
        async with self._sending:
            self._writer.write(frames.pack_message(header, total))
            for data in frames.few_buffers(payload):
                await self._writer.drain()
                self._writer.write(data)
            await self._writer.drain()

    # --- Answering ------------------------------------------------------------------------------------------

    async def _answer(self, message: messages.Message[Any], number: int | None) -> None:
        """Do one thing and reply, if the client waits for a reply."""
        try:
            answer, payload = await self._do(message, number)
            if number is not None:
                await self._send({"id": number, "ok": messages.Done() if answer is None else answer}, payload)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001  it goes to the one who asked
            if not isinstance(error, PenstockError):
                _log.exception("a request failed")
            if number is not None:
                await self._send({"id": number, "error": frames.dump_error(error)})

    async def _do(self, message: messages.Message[Any], number: int | None) -> tuple[Any, Sequence[Buffer]]:
        """Do one thing where its kind is done. The event loop serves all, so nothing that may take long runs there."""
        if isinstance(message, messages.CallStore):
            return await self._call_store(message, number)
        if isinstance(message, messages.Register):
            failpoint("register.before")
        if (act := _OF_CONNECTION.get(type(message))) is not None:
            answer = act(self, message)
        elif isinstance(message, _AT_ONCE):
            answer = self._server.desk.do(self._client, message, self._soon)
        else:
            answer = await self._in_turn(self._server.desk.do, self._client, message, self._soon)
        if not isinstance(answer, messages.Pending):
            return answer, ()
        try:
            return messages.answer_of(await self._wait(number, asyncio.wrap_future(answer.future), answer.progress))
        finally:
            answer.end()

    async def _wait(
        self, number: int | None, future: asyncio.Future[T], progress: Callable[[], messages.Progress]
    ) -> T:
        """Wait for something, while the client hears every second that the fetcher is alive."""
        if not self._is_reporting:
            self._is_reporting = True
            self._start(self._report())
        self._waiting[number] = progress
        try:
            return await future
        finally:
            self._waiting.pop(number, None)

    async def _report(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(PROGRESS_S)
                for number, progress in list(self._waiting.items()):
                    if number in self._waiting and number is not None:
                        await self._send({"id": number, "progress": progress()})
        except ConnectionError as error:
            _log.info("a client disconnected before it was told about the progress of its requests: %s", error)
        finally:
            self._is_reporting = False

    async def _call_store(self, call: messages.CallStore, number: int | None) -> tuple[Any, Sequence[Buffer]]:
        is_over = threading.Event()
        reasons = [""]  # why it was tried again, the last one last
        call_it = partial(call_store, call, is_over, on_retry=lambda error: reasons.append(str(error)))
        future = self._loop.run_in_executor(self._server.store_threads, call_it)
        try:
            answer, data = await self._wait(number, future, lambda: messages.Progress(reason=reasons[-1]))
        finally:
            is_over.set()
        return answer, [data] if data else []

    # --- What concerns the connection alone -----------------------------------------------------------------

    def _hello(self, hello: messages.Hello) -> None:
        if hello.protocol != frames.PROTOCOL:
            raise FetcherError(f"the fetcher speaks protocol {frames.PROTOCOL}, not {hello.protocol}")
        if self._server.load.num_connections > _MOST_CONNECTIONS:
            raise FetcherError(f"{_MOST_CONNECTIONS} processes are connected to the fetcher: it serves no more")

    def _withdraw(self, withdraw: messages.Withdraw) -> None:
        task = self._tasks.get(withdraw.request)
        if task is not None:
            task.cancel()

    def _stream_counts(self, asked: messages.GetStreamCounts) -> messages.GroupUpdate:
        untold = messages.GroupUpdate(asked.group)
        update = self._updates.get(asked.group)
        if update is not None:
            untold.counts, update.counts = update.counts, {}
        return untold

    def _soon(self, update: messages.GroupUpdate) -> None:
        """Have an update told from whatever thread, which waits for nothing."""
        with suppress(RuntimeError):  # the loop has ended, and with it all clients
            self._loop.call_soon_threadsafe(self._tell_soon, update)

    def _tell_soon(self, update: messages.GroupUpdate) -> None:
        if not self._is_telling:
            self._is_telling = True
            self._start(self._tell_updates())
        self._updates.setdefault(update.group, messages.GroupUpdate(update.group)).add(update)

    async def _tell_updates(self) -> None:
        try:
            while self._updates:
                await self._send({"update": self._updates.pop(next(iter(self._updates)))})
        except ConnectionError as error:
            _log.info("a client disconnected before it was told what is new: %s", error)
        finally:
            self._is_telling = False


_OF_CONNECTION: dict[type[messages.Message[Any]], Callable[..., Any]] = {
    messages.Hello: Connection._hello,
    messages.Withdraw: Connection._withdraw,
    messages.GetStreamCounts: Connection._stream_counts,
}
# Done on the event loop: these take short locks only. All others are done in a thread of the client, where they may
# look at directories; the next message waits for them.
_AT_ONCE = (messages.Released, messages.LeaseAcquired, messages.GetStats, messages.Fetch)
# Answered in a task of its own each, while further messages are taken.
_ASIDE = (messages.Fetch, messages.Read, messages.CallStore)


# --- For processes that have no client of their own ---------------------------------------------------------


def call_store(
    call: messages.CallStore, is_over: threading.Event, on_retry: Callable[[StoreError], None]
) -> tuple[messages.StoreAnswer, bytes]:
    """Do one thing with a store: give what it says of an object, and bytes if it is bytes that were asked for.

    It is not tried again once `is_over` says that its client has left.
    """

    def pause(seconds: float) -> None:
        if is_over.wait(seconds):
            raise FetcherError(f"the client that wanted to {call.action} has disconnected")

    act = _STORE_ACTIONS.get(call.action)
    if act is None or getattr(call, _NEEDED.get(call.action, "key")) is None:
        raise FetcherError(f"a client asked for the unknown store action {call.action!r}")
    store = open_store(call.store, retry=call.retry, hooks=RetryHooks(sleep=pause, on_retry=on_retry))
    found = act(store, call, call.span, None if call.path is None else Path(call.path))
    data, info = found if isinstance(found, tuple) else (found or b"", None)
    return messages.StoreAnswer(info), bytes(data)


_STORE_ACTIONS: dict[str, Callable[[Store, messages.CallStore, Any, Any], Any]] = {  # with its span, and its path
    "read": lambda store, call, span, _: store.read(call.key, span),
    "read_piece": lambda store, call, span, _: store.read_piece(call.key, span, call.etag),
    "stat": lambda store, call, *_: (b"", store.stat(call.key)),
    "list": lambda store, call, *_: json.dumps([asdict(found) for found in store.list(call.key)]).encode(),
    "revision": lambda store, *_: (store.commit() if isinstance(store, HasCommits) else "").encode(),
    "check": lambda store, *_: check_writable(store),
    "upload": lambda store, call, _, path: store.upload(path, call.key),
    "download": lambda store, call, span, path: store.download(call.key, path, span),
    "delete": lambda store, call, *_: store.delete(call.key),
}
_NEEDED = {"read_piece": "span", "upload": "path", "download": "path"}
