"""Serves the scheduler over a local socket: one connection a process, any number of groups and requests on it."""

from __future__ import annotations

import asyncio
import enum
import gc
import itertools
import logging
import threading
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import FetcherError, PenstockError
from penstock.failpoints import reach
from penstock.fetcher.elastic_threads import ElasticThreads
from penstock.fetcher.origin import call_store
from penstock.wire import frames, messages
from penstock.wire.address import check_peer

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from concurrent.futures import Executor

    from typing_extensions import Buffer

    from penstock.fetcher.scheduler import Scheduler
    from penstock.wire.share import Share

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
_LARGE_S = 60.0  # for which a large message may be coming: others wait for its room


class Server:
    """Lives while anybody is connected, and a little longer: a pool of processes may come back at once."""

    def __init__(self, scheduler: Scheduler, listener: socket.socket) -> None:
        self._scheduler = scheduler
        self._listener = listener
        self._clients: set[int] = set()
        self._load = Load()
        self._numbers = itertools.count()
        self._idle_since = time.monotonic() + FIRST_CLIENT_S - GRACE_S
        self._changed = asyncio.Event()
        self._store_threads = ElasticThreads(_MOST_STORE_CALLS, "penstock-store")
        # Each client has one of these at most, while it needs it: a directory on a slow disk holds up nobody but those
        # who use it.
        self._client_threads = ElasticThreads(_MOST_CLIENTS, "penstock-client")

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
        self._client_threads.shutdown()
        self._store_threads.shutdown(cancel_futures=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = next(self._numbers)
        self._clients.add(client)
        self._load.num_connections += 1
        self._changed.set()
        session = ClientSession(
            self._scheduler,
            client,
            reader,
            writer,
            self._load,
            threads=self._client_threads,
            store_threads=self._store_threads,
        )
        try:
            check_peer(writer.get_extra_info("socket"))
            await session.run()
        except (FetcherError, ConnectionError, asyncio.IncompleteReadError) as error:
            _log.info("a client disconnected: %s", error)
        finally:
            await session.close()
            self._clients.discard(client)
            self._load.num_connections -= 1
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


class Handled(enum.Enum):
    """Where a message is dealt with. The event loop serves everybody, so nothing that may take long runs there."""

    AT_ONCE = enum.auto()  # on the event loop: it takes short locks only
    IN_TURN = enum.auto()  # in the client's own thread: it looks at directories; the next message waits for it
    ASIDE = enum.auto()  # in a task of its own, while further messages are taken


_Received = tuple["messages.Message[Any] | FetcherError", "int | None"]


def _understand(data: bytes) -> _Received:
    """Give a message, and its number if it is a request; instead of a request that makes no sense, what to answer."""
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


class ClientSession:
    """One connection: any number of groups and requests on it."""

    def __init__(
        self,
        scheduler: Scheduler,
        client: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        load: Load,
        *,
        threads: Executor,
        store_threads: Executor,
    ) -> None:
        self._scheduler = scheduler
        self._client = client
        self._reader = reader
        self._writer = writer
        self._load = load
        self._store_threads = store_threads
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._sending, self._turn = asyncio.Lock(), asyncio.Lock()
        self._tasks: dict[object, asyncio.Task[None]] = {}  # those that answer a request by its number
        self._waiting: dict[int | None, Callable[[], messages.Progress]] = {}  # by request: who says how far it is
        self._news: dict[int, messages.News] = {}  # to be told, by group
        self._is_telling = False
        self._is_reporting = False

    async def run(self) -> None:
        """Take messages until the client leaves. Those that change the books are done in order."""
        while (received := await self._receive()) is not None:
            message, number = received
            if isinstance(message, FetcherError):
                await self._send({"id": number, "error": frames.dump_error(message)})
                continue
            how, act = _HANDLERS[type(message)]
            answering = self._answer(how, act, message, number)
            if how is Handled.ASIDE:
                self._start(answering, number)
                await asyncio.sleep(0)  # it takes its turn, if it needs one, before what comes next
            else:
                await answering

    async def close(self) -> None:
        """Forget the client, once its last message is done."""
        for task in self._tasks.values():
            task.cancel()
        self._writer.close()
        await self._in_turn(self._scheduler.drop_client, self._client)

    async def _in_turn(self, action: Callable[..., Any], *arguments: object) -> Any:
        """Do what may take long; whoever comes later waits for it, so that a client's messages are done in order."""
        async with self._turn:
            return await self._loop.run_in_executor(self._threads, action, *arguments)

    def _start(self, work: Coroutine[Any, Any, None], number: int | None = None) -> None:
        if self._load.num_requests >= _MOST_REQUESTS:
            work.close()
            raise FetcherError(f"more than {_MOST_REQUESTS} requests wait for answers")
        name = object() if number is None else number
        if name in self._tasks:
            work.close()
            raise FetcherError(f"two requests have the number {number}")
        self._load.num_requests += 1
        self._tasks[name] = self._loop.create_task(work)
        self._tasks[name].add_done_callback(partial(self._end, name))

    def _end(self, name: object, task: asyncio.Task[None]) -> None:
        self._load.num_requests -= 1
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
        async with self._load.large_message(num_header):
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

    async def _answer(
        self, how: Handled, act: Callable[..., Any], message: messages.Message[Any], number: int | None
    ) -> None:
        """Do one thing and reply, if the client waits for a reply."""
        try:
            payload: Sequence[Buffer] = ()
            if how is Handled.AT_ONCE:
                answer = act(self, message)
            elif how is Handled.IN_TURN:
                answer = await self._in_turn(act, self, message)
            else:
                answer = await act(self, message, number)
            if isinstance(answer, tuple):
                answer, payload = answer
            if number is not None:
                await self._send({"id": number, "ok": messages.Done() if answer is None else answer}, payload)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001  it goes to whoever asked
            if not isinstance(error, PenstockError):
                _log.exception("a request failed")
            if number is not None:
                await self._send({"id": number, "error": frames.dump_error(error)})

    async def _wait(
        self,
        number: int | None,
        future: asyncio.Future[T],
        progress: Callable[[], messages.Progress] = messages.Progress,
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

    # --- Unasked --------------------------------------------------------------------------------------------

    def _tell_share(self, group: int, share: Share) -> None:
        """Say what a group may keep open; of several shares the last one counts."""
        self._news_of(group).share = share

    def _tell_caused(self, group: int, stream: int, counts: messages.StreamCounts) -> None:
        """Say what a stream has caused."""
        news = self._news_of(group)
        news.caused = messages.Caused({}) if news.caused is None else news.caused
        news.caused.streams[stream] = news.caused.streams.get(stream, messages.StreamCounts()) + counts

    def _news_of(self, group: int) -> messages.News:
        """Give what a group is told once the client takes it; nobody waits for that."""
        if not self._is_telling:
            self._is_telling = True
            self._start(self._tell_news())
        return self._news.setdefault(group, messages.News(group))

    async def _tell_news(self) -> None:
        try:
            while self._news:
                await self._send({"news": self._news.pop(next(iter(self._news)))})
        except ConnectionError as error:
            _log.info("a client disconnected before it was told the news: %s", error)
        finally:
            self._is_telling = False

    # --- At once --------------------------------------------------------------------------------------------

    def _hello(self, hello: messages.Hello) -> None:
        if hello.protocol != frames.PROTOCOL:
            raise FetcherError(f"the fetcher speaks protocol {frames.PROTOCOL}, not {hello.protocol}")
        if self._load.num_connections > _MOST_CONNECTIONS:
            raise FetcherError(f"{_MOST_CONNECTIONS} processes are connected to the fetcher: it serves no more")

    def _released(self, _: messages.Released) -> None:
        self._scheduler.released()

    def _taken(self, taken: messages.Taken) -> None:
        self._scheduler.taken((self._client, taken.group), taken.stream, taken.identity)

    def _withdraw(self, withdraw: messages.Withdraw) -> None:
        task = self._tasks.get(withdraw.request)
        if task is not None:
            task.cancel()

    def _stats(self, _: messages.GetStats) -> messages.NodeCounts:
        return self._scheduler.stats()

    def _caused(self, asked: messages.GetCaused) -> messages.Caused:
        news = self._news.get(asked.group)
        if news is None or news.caused is None:
            return messages.Caused({})
        untold, news.caused = news.caused, None
        return untold

    # --- In turn --------------------------------------------------------------------------------------------

    def _register(self, register: messages.Register) -> messages.Registered:
        reach("register.before")

        def soon(tell: Callable[..., None], *what: object) -> None:
            with suppress(RuntimeError):  # the loop has ended, and with it all clients
                self._loop.call_soon_threadsafe(tell, register.group, *what)

        warnings = self._scheduler.register(
            (self._client, register.group),
            register.streams,
            register.limit_bytes,
            on_share=partial(soon, self._tell_share),
            on_caused=partial(soon, self._tell_caused),
        )
        return messages.Registered(tuple(warnings))

    def _unregister(self, unregister: messages.Unregister) -> None:
        self._scheduler.unregister((self._client, unregister.group))

    def _expect(self, expect: messages.Expect) -> None:
        self._scheduler.expect((self._client, expect.group), expect.wants)

    # --- Aside ----------------------------------------------------------------------------------------------

    async def _fetch(self, fetch: messages.Fetch, number: int | None) -> messages.Fetched:
        group = self._client, fetch.group
        request = self._scheduler.ask(group, fetch.stream, fetch.item, is_urgent=fetch.is_urgent)
        future = asyncio.wrap_future(request.future)
        try:
            fetched = await self._wait(number, future, lambda: self._scheduler.progress(request))
            notice = self._scheduler.take_notice(group, fetch.stream)
            return replace(fetched, warnings=(*fetched.warnings, notice)) if notice else fetched
        except Exception:
            self._scheduler.take_notice(group, fetch.stream)  # the error says the same, and more
            raise
        finally:
            self._scheduler.withdraw(request)

    async def _read(self, read: messages.Read, number: int | None) -> tuple[messages.Found, list[Buffer]]:
        group = self._client, read.group
        start = partial(self._scheduler.read, group, read.stream, read.places, read.edition, read.shards)
        reading = await self._in_turn(start)
        answer = asyncio.wrap_future(reading.future)
        found = await self._wait(number, answer, lambda: self._scheduler.progress_of_read(reading))
        sizes = tuple(sum(memoryview(piece).nbytes for piece in pieces) for pieces in found)
        return messages.Found(sizes), [piece for pieces in found for piece in pieces]

    async def _store(self, call: messages.CallStore, number: int | None) -> tuple[messages.StoreAnswer, list[Buffer]]:
        is_over = threading.Event()
        reasons = [""]  # why it was tried again, the last one last
        call_it = partial(call_store, call, is_over, on_retry=lambda error: reasons.append(str(error)))
        future = self._loop.run_in_executor(self._store_threads, call_it)
        try:
            answer, data = await self._wait(number, future, lambda: messages.Progress(reason=reasons[-1]))
        finally:
            is_over.set()
        return answer, [data] if data else []


_HANDLERS: dict[type[messages.Message[Any]], tuple[Handled, Callable[..., Any]]] = {
    messages.Hello: (Handled.AT_ONCE, ClientSession._hello),
    messages.Released: (Handled.AT_ONCE, ClientSession._released),
    messages.Taken: (Handled.AT_ONCE, ClientSession._taken),
    messages.Withdraw: (Handled.AT_ONCE, ClientSession._withdraw),
    messages.GetStats: (Handled.AT_ONCE, ClientSession._stats),
    messages.GetCaused: (Handled.AT_ONCE, ClientSession._caused),
    messages.Register: (Handled.IN_TURN, ClientSession._register),
    messages.Unregister: (Handled.IN_TURN, ClientSession._unregister),
    messages.Expect: (Handled.IN_TURN, ClientSession._expect),
    messages.Fetch: (Handled.ASIDE, ClientSession._fetch),
    messages.Read: (Handled.ASIDE, ClientSession._read),
    messages.CallStore: (Handled.ASIDE, ClientSession._store),
}
