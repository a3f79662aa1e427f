"""What a client says, done with the scheduler: the same for a process behind a socket and for this one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from typing_extensions import Buffer

    from penstock.fetcher.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Pending:
    """An answer that comes later; `end` is called once it has come, or is no longer wanted."""

    future: Future[Any]
    progress: Callable[[], messages.Progress]
    end: Callable[[], None] = lambda: None


class Session:
    """One client: any number of groups and requests. `on_news` hears what they are told unasked, and must not wait."""

    def __init__(self, scheduler: Scheduler, client: int, on_news: Callable[[messages.News], None]) -> None:
        self._scheduler = scheduler
        self._client = client
        self._on_news = on_news

    def do(self, message: messages.Message[Any]) -> Any:
        """Do what a message says, and return the answer, a `Pending` one, or None if there is nothing to say."""
        return _ACTIONS[type(message)](self, message)

    def close(self) -> None:
        """Forget all groups of the client."""
        self._scheduler.drop_client(self._client)

    # --- Quickly --------------------------------------------------------------------------------------------

    def _released(self, _: messages.Released) -> None:
        self._scheduler.released()

    def _taken(self, taken: messages.Taken) -> None:
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
            on_share=lambda share: self._on_news(messages.News(register.group, share)),
            on_caused=lambda stream, counts: self._on_news(messages.News(register.group, caused={stream: counts})),
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
    messages.Taken: Session._taken,
    messages.GetStats: Session._stats,
    messages.Fetch: Session._fetch,
    messages.Register: Session._register,
    messages.Unregister: Session._unregister,
    messages.Expect: Session._expect,
    messages.Read: Session._read,
    messages.GetCaused: lambda *_: messages.Caused({}),  # all was told already
}
