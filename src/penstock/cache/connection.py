"""One connection to the fetcher: messages out, answers to those who wait for them, and what it says unasked."""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import FetcherError
from penstock.processes import abandon_in_children
from penstock.wire.encoding import load
from penstock.wire.frames import PREFIX_BYTES, Header, pack_message, unpack_header, unpack_prefix
from penstock.wire.messages import GroupUpdate, dump_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.wire.messages import Message

_GOODBYE_S = 1.0


class LostError(Exception):
    """The connection is gone; never leaves this package."""


class FetcherConnection:
    """One socket to the fetcher, used by any number of threads.

    A thread of its own reads it: answers go to those who wait for them, and what the fetcher says unasked is heard
    also while it is not asked anything.
    """

    def __init__(self, connection: socket.socket, silence_s: float) -> None:
        self._socket = connection
        self._silence_s = silence_s
        self._sending = threading.Lock()
        self._lock = threading.RLock()  # the collector may close a cache, and with it the line, at any time
        self.is_lost = False  # nothing more can come
        self._is_loss_counted = False
        self._failure: FetcherError | None = None
        self._heard_at = time.monotonic()
        self._answers: dict[int, queue.SimpleQueue[tuple[Header, bytes] | None]] = {}
        self._on_update: Callable[[GroupUpdate | None], None] = lambda _: None
        self._buffer = bytearray()
        connection.settimeout(silence_s)  # of sending; a reader that hears nothing for so long goes on listening
        abandon_in_children(self)
        self._reader = threading.Thread(target=self._read_all, name="penstock-line", daemon=True)
        self._reader.start()

    def listen(self, on_update: Callable[[GroupUpdate | None], None]) -> None:
        """Have a function called with what the fetcher says unasked, and with None when the line is gone.

        It is called by the thread that reads, and must not wait for an answer.
        """
        self._on_update = on_update

    def send(self, message: Message[Any], number: int | None = None) -> None:
        """Send a message; with a number it is a request, whose answers carry the same."""
        data = pack_message(dump_message(message, number))
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise LostError(str(error)) from error

    def open_request(self, number: int) -> None:
        """Keep the answers to a request until they are taken."""
        with self._lock:
            self._answers[number] = queue.SimpleQueue()
            self._heard_at = time.monotonic()

    def close_request(self, number: int) -> None:
        """Throw away what may still come for a request."""
        with self._lock:
            self._answers.pop(number, None)

    def next_answer(self, number: int) -> tuple[Header, bytes]:
        """Wait for the next message to a request; total silence for too long is an error."""
        answers = self._answers[number]
        while not (self.is_lost and answers.empty()):
            left_s = self._heard_at + self._silence_s - time.monotonic()
            if left_s <= 0:
                self.close()
                raise FetcherError(
                    f"the fetcher has not answered for {self._silence_s:g} s, although it should report every"
                    " second: it is stopped or stuck. Kill it, and penstock will start a new one"
                )
            with suppress(queue.Empty):
                answer = answers.get(timeout=left_s)
                if answer is not None:
                    return answer
        raise self._failure or LostError("the connection to the fetcher was lost")

    def close(self) -> None:
        """Hang up; those who wait hear of it. The socket is closed by the thread that reads it, as it ends."""
        with self._lock:
            self.is_lost = True
            for answers in self._answers.values():
                answers.put(None)
        with suppress(OSError):  # the other end may have been quicker
            self._socket.shutdown(socket.SHUT_RDWR)

    def wait_closed(self) -> None:
        """Wait until the thread that reads has ended, which takes a moment only."""
        if threading.current_thread() is not self._reader and not sys.is_finalizing():
            self._reader.join(_GOODBYE_S)

    def is_first_to_count_loss(self) -> bool:
        """Choose one of the threads that saw the connection break to count it."""
        with self._lock:
            is_first, self._is_loss_counted = not self._is_loss_counted, True
            return is_first

    def after_fork_in_child(self) -> None:
        """Close the child's copy of the descriptor; locks may be held by threads that do not exist here."""
        self.is_lost = True
        self._socket.close()

    # --- The thread that reads ------------------------------------------------------------------------------

    def _read_all(self) -> None:
        """Read until the line is gone. Those who wait for answers are told so, each in its own thread."""
        try:
            while True:
                self._read_one()
        except LostError:
            pass
        except FetcherError as error:  # what came is not of our protocol
            self._failure = error
        finally:
            self.close()
            self._socket.close()
            self._on_update(None)

    def _read_one(self) -> None:
        """Read until one whole message has come, and hand it over."""
        self._fill(PREFIX_BYTES)
        num_header, num_payload = unpack_prefix(self._buffer)
        self._fill(PREFIX_BYTES + num_header)
        header = unpack_header(bytes(self._buffer[PREFIX_BYTES : PREFIX_BYTES + num_header]))
        total = PREFIX_BYTES + num_header + num_payload
        self._fill(total)
        payload = bytes(memoryview(self._buffer)[PREFIX_BYTES + num_header : total])
        del self._buffer[:total]
        if "id" not in header:
            self._on_update(load(GroupUpdate, header.get("update")))
            return
        with self._lock:
            answers = self._answers.get(int(header["id"]))
            if answers is not None:
                answers.put((header, payload))

    def _fill(self, num_bytes: int) -> None:
        while len(self._buffer) < num_bytes:
            try:
                data = self._socket.recv(max(65536, min(num_bytes - len(self._buffer), 4 << 20)))
            except TimeoutError:
                continue
            except OSError as error:
                raise LostError(str(error)) from error
            if not data:
                raise LostError("the fetcher closed the connection")
            self._heard_at = time.monotonic()
            self._buffer += data
