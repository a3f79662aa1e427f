"""A network with latency and limited bandwidth in front of a local HTTP server.

Bodies go from socket to socket inside the kernel, so that the proxy itself costs little: `remote.py` measures what
passes at most.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

PIPE_BYTES = 1 << 20
LIMITED_PIECE = 1 << 16
HEAD_LIMIT = 1 << 16


class Bandwidth:
    """Bytes per second that all connections share: each sender waits for its turn."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self.bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, num_bytes: int) -> None:
        if self.bytes_per_s is None:
            return
        with self._lock:
            begin = max(self._free_at, time.monotonic())
            self._free_at = begin + num_bytes / self.bytes_per_s
        time.sleep(max(0.0, begin - time.monotonic()))


class SlowNetwork:
    """Listens while the block lasts; every request waits `latency_s` before the server sees it."""

    def __init__(self, server_port: int, latency_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        self._server_port = server_port
        self._latency_s = latency_s
        self._bandwidth = Bandwidth(bytes_per_s)
        self._lock = threading.Lock()
        self.num_requests = 0
        self.bytes_down = 0
        self.bytes_up = 0

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed: the block is over
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._server_port))
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=self._answer, args=(server, client), daemon=True)
        back.start()
        # Clients break connections as they like: that is the end of this one, not an error.
        with suppress(OSError):
            self._ask(client, server)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)
        back.join()
        client.close()
        server.close()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        """Passes on one request after the other, each of them late."""
        rest = b""
        while True:
            head, rest = read_head(client, rest)
            if not head:
                return
            with self._lock:
                self.num_requests += 1
            time.sleep(self._latency_s)
            body_bytes = content_length(head)
            server.sendall(head + rest[:body_bytes])
            body_bytes, rest = body_bytes - len(rest[:body_bytes]), rest[body_bytes:]
            if body_bytes:
                self._pass_on(client, server, body_bytes)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            self._pass_on(server, client, None)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, source: socket.socket, sink: socket.socket, num_bytes: int | None) -> None:
        """Moves so many bytes, or all that come, through a pipe: they never enter this process."""
        out, into = os.pipe()
        piece = PIPE_BYTES if self._bandwidth.bytes_per_s is None else LIMITED_PIECE
        with suppress(OSError):  # large pipes of one user are limited: of many connections, some have small ones
            fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        try:
            while num_bytes is None or num_bytes > 0:
                moved = os.splice(source.fileno(), into, piece if num_bytes is None else min(piece, num_bytes))
                if not moved:
                    return
                self._bandwidth.wait(moved)
                self._count(moved, up=num_bytes is not None)
                num_bytes = None if num_bytes is None else num_bytes - moved
                while moved:
                    moved -= os.splice(out, sink.fileno(), moved)
        finally:
            os.close(out)
            os.close(into)

    def _count(self, num_bytes: int, *, up: bool) -> None:
        with self._lock:
            if up:
                self.bytes_up += num_bytes
            else:
                self.bytes_down += num_bytes


def read_head(client: socket.socket, begun: bytes) -> tuple[bytes, bytes]:
    """Return the head of a request, and what came after it; nothing at the end."""
    while b"\r\n\r\n" not in begun:
        more = client.recv(HEAD_LIMIT)
        if not more or len(begun) > HEAD_LIMIT:
            return b"", b""
        begun += more
    head, _, rest = begun.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", rest


def content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
        if name.strip().lower() == b"transfer-encoding":
            raise OSError("chunked requests do not pass here")
    return 0
