"""What a client says, done with the scheduler: the same for a process behind a socket and for this one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import FetcherError
from penstock.storage.base import HasCommits, check_writable, open_store
from penstock.storage.retry import RetryHooks
from penstock.wire import messages

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from typing_extensions import Buffer

    from penstock.errors import StoreError
    from penstock.fetcher.scheduler import Scheduler
    from penstock.storage.base import Store


@dataclass(frozen=True, slots=True)
class Pending:
    """An answer that comes later; `end` is called once it has come, or is no longer wanted."""

    future: Future[Any]
    progress: Callable[[], messages.Progress]
    end: Callable[[], None] = lambda: None


class Session:
    """One client, with any number of groups and requests. `on_update` hears what they are told; it must not wait."""

    def __init__(self, scheduler: Scheduler, client: int, on_update: Callable[[messages.GroupUpdate], None]) -> None:
        self._scheduler = scheduler
        self._client = client
        self._on_news = on_update

    def do(self, message: messages.Message[Any]) -> Any:
        """Do what a message says, and return the answer, a `Pending` one, or None if there is nothing to say."""
        return _ACTIONS[type(message)](self, message)

    def close(self) -> None:
        """Forget all groups of the client."""
        self._scheduler.drop_client(self._client)

    # --- Quickly --------------------------------------------------------------------------------------------

    def _released(self, _: messages.Released) -> None:
        self._scheduler.released()

    def _taken(self, taken: messages.LeaseAcquired) -> None:
        self._scheduler.taken((self._client, taken.group), taken.stream, taken.identity)

    def _stats(self, _: messages.GetStats) -> messages.NodeCounts:
        return self._scheduler.stats()

    def _fetch(self, fetch: messages.Fetch) -> Pending:
        scheduler = self._scheduler
        request = scheduler.ask((self._client, fetch.group), fetch.stream, fetch.item, is_urgent=fetch.is_urgent)
        return Pending(request.future, partial(scheduler.progress, request), partial(scheduler.withdraw, request))

    # --- What may take long ---------------------------------------------------------------------------------

    def _register(self, register: messages.Register) -> messages.Registered:
        warnings = self._scheduler.register(
            (self._client, register.group),
            register.streams,
            register.limit_bytes,
            self._on_news,
        )
        return messages.Registered(tuple(warnings))

    def _unregister(self, unregister: messages.Unregister) -> None:
        self._scheduler.unregister((self._client, unregister.group))

    def _expect(self, expect: messages.Expect) -> None:
        self._scheduler.expect((self._client, expect.group), expect.wants)

    def _read(self, read: messages.Read) -> Pending:
        group = self._client, read.group
        reading = self._scheduler.read(group, read.stream, read.places, read.edition, read.shards)
        return Pending(reading.future, partial(self._scheduler.progress_of_read, reading))


def answer_of(result: Any) -> tuple[Any, Sequence[Buffer]]:
    """Return what answers a request that has ended, and the bytes that follow."""
    if not isinstance(result, list):
        return result, ()
    sizes = tuple(sum(memoryview(piece).nbytes for piece in pieces) for pieces in result)
    return messages.Found(sizes), [piece for pieces in result for piece in pieces]


_ACTIONS: dict[type[messages.Message[Any]], Callable[..., Any]] = {
    messages.Released: Session._released,
    messages.LeaseAcquired: Session._taken,
    messages.GetStats: Session._stats,
    messages.Fetch: Session._fetch,
    messages.Register: Session._register,
    messages.Unregister: Session._unregister,
    messages.Expect: Session._expect,
    messages.Read: Session._read,
    messages.GetStreamCounts: lambda _, asked: messages.GroupUpdate(asked.group),  # all was told already
}


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

    hooks = RetryHooks(sleep=pause, on_retry=on_retry)
    return _act(open_store(call.store, retry=call.retry, hooks=hooks), call)


def _act(store: Store, call: messages.CallStore) -> tuple[messages.StoreAnswer, bytes]:
    data = b""
    info = None
    if call.action == "read":
        data = store.read(call.key, call.span)
    elif call.action == "read_piece" and call.span is not None:
        piece, info = store.read_piece(call.key, call.span, call.etag)
        data = bytes(piece)
    elif call.action == "stat":
        info = store.stat(call.key)
    elif call.action == "list":
        data = json.dumps([asdict(found) for found in store.list(call.key)]).encode()
    elif call.action == "revision":
        data = (store.commit() if isinstance(store, HasCommits) else "").encode()
    elif call.action == "check":
        check_writable(store)
    elif call.action == "upload" and call.path is not None:
        store.upload(Path(call.path), call.key)
    elif call.action == "download" and call.path is not None:
        store.download(call.key, Path(call.path), call.span)
    elif call.action == "delete":
        store.delete(call.key)
    else:
        raise FetcherError(f"a client asked for the unknown store action {call.action!r}")
    return messages.StoreAnswer(info), data
