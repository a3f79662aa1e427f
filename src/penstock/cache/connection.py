"""Finds the node's fetcher, starts it if there is none, and holds a connection to it."""

from __future__ import annotations

import os
import queue
import selectors
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from penstock.cachedir.lock import lock_within
from penstock.errors import FetcherError
from penstock.interrupts import WaitingFor
from penstock.processes import abandon_in_children
from penstock.wire.address import READY, FetcherAddress, check_peer, fetcher_address, package_root
from penstock.wire.ahead import NOTHING, open_ahead
from penstock.wire.encoding import load
from penstock.wire.frames import PREFIX_BYTES, PROTOCOL, Header, load_error, pack_message, unpack_header, unpack_prefix
from penstock.wire.messages import GroupUpdate, Hello, dump_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.wire.messages import Message

_GOODBYE_S = 1.0
_START_S = 60.0
_STARTS = 4  # of a fetcher that dies before it serves a client
_KEPT_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "VIRTUAL_ENV", "TOKIO_WORKER_THREADS")
_KEPT_PREFIXES = (
    "LANG",
    "LC_",
    "LD_",
    "DYLD_",
    "PYTHON",
    "SSL_CERT_",
    "PENSTOCK_",
    "MALLOC_",
    "COV_CORE_",
    "GCE_METADATA_",  # where a machine of Google's asks for its own account
)
# The fork leaves no child for the client to collect. It comes before the imports, which may start threads. What they
# make stays, so the collector need not look through it while a client waits. Most of them come after the first request.
_PROGRAM = (
    "import gc, os; gc.disable(); os.fork() and os._exit(0); from penstock.wire.ahead import IndexesAhead;"
    " ahead = IndexesAhead(os.read(0, 1 << 16)); from penstock.fetcher.main import main; main(ahead)"
)
# obstore would start as many threads as there are processors, and each thread take memory for itself alone. With every
# packet they also wake each other: half of the processors carry as much, and leave the others to those who read.
_MOST_NETWORK_THREADS = 4
_FRUGAL = {
    "TOKIO_WORKER_THREADS": str(min(_MOST_NETWORK_THREADS, max(1, (os.cpu_count() or 1) // 2))),
    "MALLOC_ARENA_MAX": "2",
}
_PROXIES = {"http_proxy", "https_proxy", "no_proxy", "all_proxy"}


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
        """Call a function with what the fetcher says unasked, and with None when the line is gone.

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


# --- Finding it, or starting it ------------------------------------------------------------------------------


def connect(silence_s: float, ahead: bytes = NOTHING) -> FetcherConnection:
    """Connect to the fetcher of this user, starting it if there is none: then it reads `ahead` at once."""
    # What is read ahead is what is waited for, as the request for it says.
    with WaitingFor("the fetcher to start") if ahead == NOTHING else nullcontext():
        return _connect(fetcher_address(), silence_s, ahead)


def _connect(address: FetcherAddress, silence_s: float, ahead: bytes) -> FetcherConnection:
    found = _try_connect(address, silence_s)
    if found is not None:
        return found
    lock = lock_within(address.lock, 2 * _START_S)
    try:
        found = _try_connect(address, silence_s)  # another client may have been quicker
        for _ in range(_STARTS):
            if found is not None:
                return found
            if _start(address, ahead):
                found = _try_connect(address, silence_s)
    finally:
        lock.close()
    if found is None:
        raise FetcherError(
            f"the fetcher was started {_STARTS} times and died each time. Its log ends with: {last_words()}"
        )
    return found


def _try_connect(address: FetcherAddress, silence_s: float) -> FetcherConnection | None:
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    raw.settimeout(silence_s)
    try:
        raw.connect(os.fspath(address.socket))
    except (FileNotFoundError, ConnectionRefusedError):
        raw.close()
        return None
    except OSError as error:
        raw.close()
        raise FetcherError(f"cannot connect to the fetcher at {address.socket}: {error.strerror}") from error
    try:
        check_peer(raw)
    except BaseException:
        raw.close()
        raise
    connection = FetcherConnection(raw, silence_s)
    try:
        connection.open_request(0)
        connection.send(Hello(PROTOCOL), 0)
        answer, _ = connection.next_answer(0)
        connection.close_request(0)
    except LostError:  # it was just leaving
        return None
    except BaseException:
        connection.close()
        raise
    if "error" in answer:
        connection.close()
        raise load_error(answer["error"])
    return connection


def _start(address: FetcherAddress, ahead: bytes) -> bool:
    """Start a fetcher of its own session and wait until it listens; tell whether it does, or has died before."""
    reading, writing = os.pipe()
    given = open_ahead(ahead)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(address.log, flags, 0o600)
        try:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", _PROGRAM, str(writing), str(address.folder)],  # the folder is for those who look
                stdin=given,
                stdout=log,
                stderr=log,
                env=_environment(address),
                cwd="/",
                pass_fds=(writing,),
                start_new_session=True,
            )
        except OSError as error:
            raise FetcherError(f"cannot start the fetcher with {sys.executable}: {error.strerror}") from error
        finally:
            os.close(log)
            os.close(writing)
            os.close(given)
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            if not selector.select(_START_S):
                raise FetcherError(f"the fetcher did not start within {_START_S:g} s: this machine may be overloaded")
        words = os.read(reading, len(READY))
        process.wait(_START_S)  # it has handed over to its child
    finally:
        os.close(reading)
    return words == READY


def last_words() -> str:
    """Return what the fetcher has left in its log, for errors."""
    try:
        text = fetcher_address().log.read_text(errors="replace")
    except OSError:
        return "(it is empty)"
    return text.strip()[-2000:] or "(it is empty)"


def _environment(address: FetcherAddress) -> dict[str, str]:
    """Return only what Python itself and the network need: settings of stores come with each request."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES) or name.lower() in _PROXIES
    }
    paths = [str(package_root()), *filter(None, [kept.get("PYTHONPATH")])]
    return {
        **_FRUGAL,
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "PENSTOCK_RUNTIME_DIR": str(address.folder),
    }
