"""Connections of this process to storage servers, kept for the next caller and never shared with a forked child."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.errors import PenstockError, StoreTimeoutError
from penstock.processes import PerProcess, abandon_in_children

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

C = TypeVar("C", bound="PooledConnection")

_of_parents: list[object] = []  # connections that came over a fork


class PooledConnection(Protocol):
    """Something that is open until it is closed, used by one thread at a time."""

    def is_open(self) -> bool:
        """Return whether it is worth another try."""

    def close(self) -> None:
        """Let it go; closing twice does nothing."""


class ConnectionPool(Generic[C]):
    """At most `limit` connections for each set of settings; a caller has one to itself while it leases it.

    A connection that a child inherits by fork would mix its bytes into its parent's, and closing it would end the
    parent's. So each process has its own, and those of its parent are never looked at again.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._servers: PerProcess[dict[Hashable, _IdleConnections[C]]] = PerProcess(dict)

    @contextmanager
    def lease(self, settings: Hashable, connect: Callable[[], C], *, timeout_s: float) -> Iterator[C]:
        """Yield an open connection; it is kept for the next caller, unless the block fails for more than an answer.

        Errors of ours are answers of a healthy server; whatever else comes out of the block closes the connection.
        """
        servers = self._servers.get()
        idle = servers.get(settings) or servers.setdefault(settings, _IdleConnections(self._limit))
        if not idle.permits.acquire(timeout=timeout_s):
            raise StoreTimeoutError(f"all {self._limit} connections to the store have been in use for {timeout_s:g} s")
        try:
            connection = idle.take() or connect()
            try:
                yield connection
            except PenstockError:
                idle.connections.append(connection)
                raise
            except BaseException:
                connection.close()
                raise
            idle.connections.append(connection)
        finally:
            idle.permits.release()


class _IdleConnections(Generic[C]):
    """What is open to one server and not in use."""

    def __init__(self, limit: int) -> None:
        self.permits = threading.BoundedSemaphore(limit)
        self.connections: list[C] = []  # append and pop are atomic
        abandon_in_children(self)

    def after_fork_in_child(self) -> None:
        """Keep them for ever, and untouched: to collect one would close it, some with a word over the parent's line."""
        _of_parents.append(self.connections)

    def take(self) -> C | None:
        """Return the connection used last, which is the least likely to have been dropped for idleness."""
        while self.connections:
            try:
                connection = self.connections.pop()
            except IndexError:  # another thread was faster
                return None
            if connection.is_open():
                return connection
            connection.close()
        return None
