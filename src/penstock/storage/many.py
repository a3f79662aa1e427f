"""Many small questions to one store at once: by its asynchronous calls if it has any, else by a few threads."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, runtime_checkable

from penstock.errors import ObjectNotFoundError, StoreError
from penstock.threads import call_all
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from typing_extensions import Buffer

    from penstock.storage.base import ObjectInfo, Store

T = TypeVar("T")

_NAME, _THREADS = "penstock-ask", 16  # for stores that have no asynchronous calls, and for what these failed to bring
# obstore hands each answer over in a thread of its own pool. Usually a few are enough for all, because that takes no
# time; while they wait for a busy interpreter there are as many as answers, and more. They stay for some seconds: if
# there are many already, fewer answers need no others.
_AT_ONCE, _FEWER_AT_ONCE = 24, 18
_MANY_THREADS = 34
_THREADS_OF_THIS_PROCESS = "/proc/self/task"

Question: TypeAlias = "tuple[str, Span]"  # with an empty span: what the object is, and nothing of it
Answer: TypeAlias = "tuple[Buffer, ObjectInfo]"
AskOnce: TypeAlias = "Callable[[str, Span], Awaitable[Answer]]"
NumberedAnswer: TypeAlias = "tuple[int, Buffer, ObjectInfo]"


@runtime_checkable
class AsksAsynchronously(Protocol):
    """A store that one thread can ask many things at once: for small ranges, and what objects are (empty ranges)."""

    def asking(self) -> AbstractAsyncContextManager[AskOnce]:
        """Return what asks once for a range of an object; whatever fails, such as too few bytes, is a `StoreError`.

        Nothing is tried again there: the caller does so with `read_piece` or `stat`, which have all the patience.
        """


def read_many(store: Store, questions: Sequence[Question]) -> Iterator[NumberedAnswer]:
    """Read small ranges of many objects, and give each with the number of its question, as they come.

    The first failure is raised, in the order of the questions.
    """
    left = set(range(len(questions)))
    for number, data, info in _ask_quickly(store, questions):
        left.discard(number)
        yield number, data, info
    again = sorted(left)
    answers = call_all([partial(store.read_piece, *questions[number]) for number in again], _THREADS, _NAME)
    for number, (data, info) in zip(again, answers, strict=True):
        yield number, data, info


def stat_many(store: Store, keys: Sequence[str]) -> list[ObjectInfo | None]:
    """Describe many objects; those that do not exist are None."""
    found: dict[int, ObjectInfo | None] = {
        number: info for number, _, info in _ask_quickly(store, [(key, Span(0, 0)) for key in keys])
    }
    left = [number for number in range(len(keys)) if number not in found]
    others = call_all([partial(_find, store, keys[number]) for number in left], _THREADS, _NAME)
    found |= zip(left, others, strict=True)
    return [found[number] for number in range(len(keys))]


def _find(store: Store, key: str) -> ObjectInfo | None:
    try:
        return store.stat(key)
    except ObjectNotFoundError:
        return None


# --- Asynchronous calls ---------------------------------------------------------------------------------------


def _ask_quickly(store: Store, questions: Sequence[Question]) -> Iterator[NumberedAnswer]:
    """Ask by asynchronous calls, if the store has any: each question once. Those that fail are left out."""
    if not isinstance(store, AsksAsynchronously) or len(questions) < 2:
        return
    answers: SimpleQueue[NumberedAnswer | None] = SimpleQueue()
    asker = _Asker(store, questions, answers.put)
    with ThreadPoolExecutor(1, thread_name_prefix=_NAME) as thread:
        running = thread.submit(lambda: asyncio.run(asker.ask_all()))
        running.add_done_callback(lambda _: answers.put(None))
        try:
            while (answer := answers.get()) is not None:
                yield answer
            running.result()
        finally:
            asker.stop()


class _Asker:
    """Asks from an event loop of its own, so that the caller can work on those that have come."""

    def __init__(
        self, store: AsksAsynchronously, questions: Sequence[Question], put: Callable[[NumberedAnswer], None]
    ) -> None:
        self._store, self._questions, self._put = store, questions, put
        self._waiting = iter(range(len(questions)))
        self._is_over = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers: list[asyncio.Future[None]] = []
        self._num_working = _AT_ONCE

    async def ask_all(self) -> None:
        """Ask until all is answered, or until `stop`."""
        async with self._store.asking() as ask:
            self._workers = [asyncio.ensure_future(self._work(ask)) for _ in range(_AT_ONCE)]
            self._loop = asyncio.get_running_loop()
            if self._is_over.is_set():
                self._cancel()
            done = await asyncio.gather(*self._workers, return_exceptions=True)
        errors = [error for error in done if isinstance(error, Exception)]
        if errors:
            raise errors[0]

    def stop(self) -> None:
        """Abandon all open questions; from any thread, also when there are none."""
        self._is_over.set()
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for worker in self._workers:
            worker.cancel()

    async def _work(self, ask: AskOnce) -> None:
        for number in self._waiting:
            with suppress(StoreError):
                self._put((number, *await ask(*self._questions[number])))
            if self._num_working > _FEWER_AT_ONCE and _num_threads() >= _MANY_THREADS:
                self._num_working -= 1
                return


def _num_threads() -> int:
    """Count the threads of this process, of any library; where that cannot be known, there are many."""
    try:
        with os.scandir(_THREADS_OF_THIS_PROCESS) as threads:
            return sum(1 for _ in threads)
    except OSError:
        return _MANY_THREADS
