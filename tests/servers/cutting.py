"""A forwarder that loses connections in the middle of what the server sends, or falls silent."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Forwarder:
    """Forwards to a port of this machine. Each number in `cuts` is for one connection, in the order that they come:
    after so many bytes from the server it is cut, or stalls if `stalls`. Later connections go through untouched."""

    def __init__(self, target: int, cuts: list[int], *, stalls: bool = False) -> None:
        self.num_cut = 0
        self._target = target
        self._cuts = list(cuts)
        self._stalls = stalls
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._listener.close()
        self._threads[0].join()
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._sockets:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            budget = self._cuts.pop(0) if self._cuts else None
            for source, sink, limit in ((client, server, None), (server, client, budget)):
                thread = threading.Thread(target=self._pump, args=(source, sink, limit))
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 14 if limit is None else min(1 << 14, max(limit, 1))):
                if limit is not None:
                    limit -= len(data)
                    if limit <= 0:
                        self.num_cut += 1
                        if self._stalls:
                            return
                        break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def forwarding(target: int, cuts: list[int], *, stalls: bool = False) -> Iterator[Forwarder]:
    forwarder = Forwarder(target, cuts, stalls=stalls)
    try:
        yield forwarder
    finally:
        forwarder.close()
