"""Connections of this process to storage servers, kept for the next caller and never shared with a forked child."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.errors import PenstockError, StoreTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

C = TypeVar("C", bound="PooledConnection")


class PooledConnection(Protocol):
    """Something that is open until it is closed, used by one thread at a time."""

    def is_open(self) -> bool:
        """Tell whether it is worth another try."""
        ...

    def close(self) -> None:
        """Let it go; closing twice does nothing."""
        ...


class ConnectionPool(Generic[C]):
    """At most `limit` connections for each set of settings; a caller has one to itself while it leases it.

    A connection that a child inherits by fork would mix its bytes into its parent's, and closing it would end the
    parent's. So connections are found by process id, and those of the parent are never looked at again.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shelves: dict[tuple[int, Hashable], _Shelf[C]] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget_lock)

    @contextmanager
    def lease(self, settings: Hashable, connect: Callable[[], C], *, timeout_s: float) -> Iterator[C]:
        """Give an open connection; it is kept for the next caller, unless the block fails for more than an answer.

        Errors of ours are answers of a healthy server; whatever else comes out of the block closes the connection.
        """
        shelf = self._shelf(settings)
        if not shelf.places.acquire(timeout=timeout_s):
            raise StoreTimeoutError(f"all {self._limit} connections to the store were in use for {timeout_s:g} s")
        try:
            connection = shelf.take() or connect()
            try:
                yield connection
            except PenstockError:
                shelf.put(connection)
                raise
            except BaseException:
                connection.close()
                raise
            shelf.put(connection)
        finally:
            shelf.places.release()

    def close(self) -> None:
        """Close every idle connection of this process; the next lease makes a new one."""
        with self._lock:
            mine = [shelf for (pid, _), shelf in self._shelves.items() if pid == os.getpid()]
        for shelf in mine:
            shelf.close()

    def _shelf(self, settings: Hashable) -> _Shelf[C]:
        with self._lock:
            return self._shelves.setdefault((os.getpid(), settings), _Shelf(self._limit))

    def _forget_lock(self) -> None:
        self._lock = threading.Lock()  # another thread may have held it while this process was forked


class _Shelf(Generic[C]):
    def __init__(self, limit: int) -> None:
        self.places = threading.BoundedSemaphore(limit)
        self._idle: list[C] = []  # append and pop are atomic

    def take(self) -> C | None:
        """Give the connection used last, which is the least likely to have been dropped for idleness."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                return None
            if connection.is_open():
                return connection
            connection.close()
        return None

    def put(self, connection: C) -> None:
        self._idle.append(connection)

    def close(self) -> None:
        while (connection := self.take()) is not None:
            connection.close()
