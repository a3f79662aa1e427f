"""Talks to the node's fetcher: asks it, and asks it again if it was killed meanwhile."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.cache.connection import FetcherConnection, LostError, connect, last_words
from penstock.errors import FetcherError
from penstock.processes import PerProcess
from penstock.wire.ahead import NOTHING
from penstock.wire.encoding import load
from penstock.wire.frames import load_error
from penstock.wire.messages import (
    AnswerT,
    Expect,
    GroupUpdate,
    Message,
    Progress,
    Register,
    Registered,
    Unregister,
    Withdraw,
    load_answer,
)
from penstock.wire.quota import UNHEARD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.wire.settings import CachedStream

SILENCE_VARIABLE = "PENSTOCK_FETCHER_SILENCE_S"
_SILENCE_S = 30.0
_RESTARTS = 5
_RESTARTS_WITHIN_S = 60.0
_group_numbers = itertools.count()


class Group:
    """The directories of one cache, as they are introduced on every new line to what fetches for them.

    `on_update` hears what may stay open, what was caused, and what to warn of. The thread that reads the line calls it,
    so it must not wait for an answer.
    """

    def __init__(
        self,
        streams: Sequence[CachedStream] = (),
        limit_bytes: int | None = None,
        on_update: Callable[[GroupUpdate], None] = lambda _: None,
    ) -> None:
        self.number = next(_group_numbers)
        self.on_update = on_update
        self.streams = tuple(streams)
        self.plan = Expect(self.number, ())
        self._limit_bytes = limit_bytes

    def introduction(self) -> list[Message[Any]]:
        """Return its messages of introduction."""
        register = Register(self.number, self.streams, self._limit_bytes)
        return [register, *([self.plan] if self.plan.wants else [])] if self.streams else []

    def take_answer(self, answer: object) -> None:
        """Pass on what an introduction was answered."""
        if isinstance(answer, Registered) and answer.warnings:
            self.on_update(GroupUpdate(self.number, warnings=answer.warnings))


class Client:
    """This process's line to the fetcher, shared by all its caches.

    A line that breaks is made anew: each cache then says again what it had said, and asks again what it waits for.
    Until then it keeps nothing open that it does not read, since it cannot be asked for it.
    """

    name = "fetcher"

    def __init__(self) -> None:
        self._lock = threading.RLock()  # never held while anything is waited for
        self._connecting = threading.Lock()
        self._hearing = threading.RLock()
        self._heard: FetcherConnection | None = None
        self._connection: FetcherConnection | None = None
        self._numbers = itertools.count(1)
        self._groups: dict[int, Group] = {}
        self._lost: weakref.WeakSet[FetcherConnection] = weakref.WeakSet()
        self._lost_at: deque[float] = deque(maxlen=_RESTARTS)
        self._is_stopped = False

    @property
    def is_connected(self) -> bool:
        """Whether a fetcher serves this process now."""
        connection = self._connection
        return connection is not None and not connection.is_lost

    def join(self, group: Group) -> None:
        """Add a cache, which is introduced on every new line. Nothing is started yet."""
        with self._lock:
            self._groups[group.number] = group
            connection = self._connection
        if connection is not None and not connection.is_lost:
            with suppress(LostError):  # the next request makes a new line, and introduces all
                self._introduce(connection, group.number)

    def leave(self, group: Group) -> None:
        """Remove a cache; with the last one the connection is closed."""
        with self._lock:
            self._groups.pop(group.number, None)
        left = self._hang_up_if_left()
        if left is None:
            self.note(Unregister(group.number))
        else:
            left.wait_closed()

    def stop(self) -> None:
        """Fail all requests at once, those that wait for an answer and those to come."""
        self._is_stopped = True
        connection = self._connection
        if connection is not None:
            connection.close()

    def _hang_up_if_left(self) -> FetcherConnection | None:
        """Close the line if no cache is left, be it one that was made while the last was leaving; return it."""
        with self._lock:
            left = self._connection if not self._groups else None
            if left is not None:
                self._connection = None
        if left is not None:
            left.close()
        return left

    def note(self, message: Message[Any]) -> None:
        """Send what needs no answer, if it is heard."""
        connection = self._connection
        if connection is not None and not connection.is_lost:
            with suppress(LostError):  # it is not heard: a new fetcher starts from what the directories show
                connection.send(message)

    def request(
        self,
        message: Message[AnswerT],
        *,
        on_progress: Callable[[Progress], None] | None = None,
        on_asked: Callable[[], None] | None = None,
        ahead: bytes = NOTHING,
    ) -> tuple[AnswerT, bytes]:
        """Ask and wait; a fetcher that dies meanwhile is replaced and asked again.

        `on_asked` is called each time that the question has been sent. A fetcher that has to be started for it is given
        `ahead`.
        """
        while True:
            connection = None if self._is_stopped else self.connect(ahead)
            if connection is None or self._is_stopped:
                raise FetcherError("the connection to the fetcher was closed before an answer came")
            try:
                return self._ask(connection, message, on_progress, on_asked)
            except LostError as error:
                self._note_loss(connection, error)
            finally:
                self._hang_up_if_left()

    def _ask(
        self,
        connection: FetcherConnection,
        message: Message[AnswerT],
        on_progress: Callable[[Progress], None] | None = None,
        on_asked: Callable[[], None] | None = None,
    ) -> tuple[AnswerT, bytes]:
        number = next(self._numbers)
        connection.open_request(number)
        is_answered = False
        try:
            connection.send(message, number)
            if on_asked is not None:
                on_asked()
            while True:
                answer, payload = connection.next_answer(number)
                if "progress" in answer:
                    if on_progress is not None:
                        on_progress(load(Progress, answer["progress"]))
                    continue
                is_answered = True
                if "error" in answer:
                    raise load_error(answer["error"])
                return load_answer(message, answer.get("ok")), payload
        finally:
            connection.close_request(number)
            if not is_answered and not connection.is_lost:  # the wait was interrupted: the fetcher need not go on
                with suppress(LostError):
                    connection.send(Withdraw(number))

    def connect(self, ahead: bytes = NOTHING) -> FetcherConnection:
        """Return the line, made if need be, over which the fetcher can say what it wants of this process."""
        with self._connecting:
            connection = self._connection
            while connection is None or connection.is_lost:
                connection = connect(float(os.environ.get(SILENCE_VARIABLE) or _SILENCE_S), ahead)
                with self._hearing:
                    self._heard = connection  # and no longer one before
                connection.listen(partial(self._hear, connection))
                try:
                    self._introduce_all(connection)
                except LostError as error:  # it died as soon as it was asked
                    self._note_loss(connection, error)
                except BaseException:
                    connection.close()  # or its thread would keep it, and the fetcher, alive
                    raise
            return connection

    def _introduce_all(self, connection: FetcherConnection) -> None:
        """Introduce every cache on a new line, also those that come meanwhile, and say which have left since."""
        introduced: set[int] = set()
        while True:
            with self._lock:
                strangers = self._groups.keys() - introduced
                if not strangers:
                    self._connection = connection
                    gone = introduced - self._groups.keys()
                    break
            for group in sorted(strangers):
                self._introduce(connection, group)
            introduced |= strangers
        for group in gone:
            connection.send(Unregister(group))

    def _introduce(self, connection: FetcherConnection, group: int) -> None:
        joined = self._groups.get(group)
        if joined is not None:
            for message in joined.introduction():
                joined.take_answer(self._ask(connection, message)[0])

    def _hear(self, connection: FetcherConnection, update: GroupUpdate | None) -> None:
        """Notify a cache what it may keep open and has caused; without a line, that it may keep nothing.

        Takes no lock that a request may hold.
        """
        with self._hearing:
            if connection is not self._heard:
                return  # the end of an old line says nothing about the new one
            for number, group in list(self._groups.items()):
                if update is None:
                    group.on_update(GroupUpdate(number, UNHEARD))
                elif number == update.group:
                    group.on_update(update)

    def _note_loss(self, connection: FetcherConnection, error: LostError) -> None:
        connection.close()
        now = time.monotonic()
        with self._lock:
            if connection in self._lost:
                return  # several threads saw it break
            self._lost.add(connection)
        self._lost_at.append(now)
        if len(self._lost_at) == _RESTARTS and now - self._lost_at[0] < _RESTARTS_WITHIN_S:
            raise FetcherError(
                f"the fetcher died {_RESTARTS} times within a minute ({error}). Its log ends with: {last_words()}"
            ) from error


shared_client = PerProcess(Client)
