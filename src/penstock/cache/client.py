"""Talks to the node's fetcher: starts it, asks it, and starts it again if it was killed."""

from __future__ import annotations

import itertools
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.cache.lock import close_in_children, lock_within
from penstock.cache.runtime import READY, Meeting, check_peer, meeting, package_root
from penstock.cache.wire import (
    PREFIX_BYTES,
    PROTOCOL,
    Header,
    load_error,
    pack_message,
    unpack_header,
    unpack_prefix,
)
from penstock.errors import FetcherError
from penstock.interrupts import WaitingFor

if TYPE_CHECKING:
    from collections.abc import Callable

SILENCE_VARIABLE = "PENSTOCK_FETCHER_SILENCE_S"
_SILENCE_S = 30.0
_START_S = 60.0
_STARTS = 4  # of a fetcher that dies before it serves anybody
_RESTARTS = 5
_RESTARTS_WITHIN_S = 60.0
_KEPT_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "VIRTUAL_ENV")
_KEPT_PREFIXES = ("LANG", "LC_", "LD_", "DYLD_", "PYTHON", "SSL_CERT_", "PENSTOCK_", "MALLOC_", "COV_CORE_")
# The fork leaves no child for the client to collect. It comes before the imports, which may start threads.
_PROGRAM = "import os; os.fork() and os._exit(0); from penstock.cache.fetcher import main; main()"
_PROXIES = {"http_proxy", "https_proxy", "no_proxy", "all_proxy"}


class LostError(Exception):
    """The connection is gone; never leaves this package."""


class Connection:
    """One socket to the fetcher, used by any number of threads.

    There is no reader thread: of the threads that wait for an answer one reads, and hands the others theirs.
    """

    def __init__(self, connection: socket.socket, silence_s: float) -> None:
        self._socket = connection
        self._silence_s = silence_s
        self._sending = threading.Lock()
        self._arrived = threading.Condition()
        self._is_reading = False
        self._is_lost = False
        self._is_mourned = False
        self._heard_at = time.monotonic()
        self._answers: dict[int, deque[tuple[Header, bytes]]] = {}
        self._buffer = bytearray()
        connection.settimeout(silence_s)
        close_in_children(self)

    @property
    def is_lost(self) -> bool:
        """Whether nothing more can come."""
        return self._is_lost

    def send(self, header: Header) -> None:
        """Send a message that needs no answer."""
        data = pack_message(header)
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise LostError(str(error)) from error

    def open_request(self, number: int) -> None:
        """Keep the answers to a request until they are taken."""
        with self._arrived:
            self._answers[number] = deque()
            self._heard_at = time.monotonic()

    def close_request(self, number: int) -> None:
        """Throw away what may still come for a request."""
        with self._arrived:
            self._answers.pop(number, None)

    def next_answer(self, number: int) -> tuple[Header, bytes]:
        """Wait for the next message to a request; total silence for too long is an error."""
        while True:
            with self._arrived:
                while True:
                    if self._answers[number]:
                        return self._answers[number].popleft()
                    if self._is_lost:
                        raise LostError("the connection to the fetcher broke")
                    if not self._is_reading:
                        self._is_reading = True
                        break
                    self._arrived.wait(1.0)
                    self._check_silence()
            try:
                self._read_one()
            finally:
                with self._arrived:
                    self._is_reading = False
                    self._arrived.notify_all()

    def close(self) -> None:
        """Hang up; whoever waits hears of it."""
        with self._arrived:
            self._is_lost = True
            self._arrived.notify_all()
        self._hang_up()

    def is_first_to_mourn(self) -> bool:
        """Tell one of the threads that saw the line break to count it."""
        with self._arrived:
            is_first, self._is_mourned = not self._is_mourned, True
            return is_first

    def abandon(self) -> None:
        """Close the child's copy of the descriptor; locks may be held by threads that do not exist here."""
        self._is_lost = True
        self._socket.close()

    def _hang_up(self) -> None:
        with suppress(OSError):  # the other end may have been quicker
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _check_silence(self) -> None:
        if time.monotonic() - self._heard_at >= self._silence_s:
            self.close()
            raise FetcherError(
                f"the fetcher has not said a word for {self._silence_s:g} s, though it reports every second: it is"
                " stopped or stuck. End it, and it will be started anew"
            )

    def _read_one(self) -> None:
        """Read until one whole message has come, and put it where its request finds it."""
        try:
            self._fill(PREFIX_BYTES)
            num_header, num_payload = unpack_prefix(self._buffer)
            self._fill(PREFIX_BYTES + num_header)
            header = unpack_header(bytes(self._buffer[PREFIX_BYTES : PREFIX_BYTES + num_header]))
            total = PREFIX_BYTES + num_header + num_payload
            self._fill(total)
            payload = bytes(memoryview(self._buffer)[PREFIX_BYTES + num_header : total])
            del self._buffer[:total]
        except BaseException:
            self.close()  # an interrupt may have eaten part of a message
            raise
        with self._arrived:
            waiting = self._answers.get(int(header["id"]))
            if waiting is not None:
                waiting.append((header, payload))

    def _fill(self, num_bytes: int) -> None:
        while len(self._buffer) < num_bytes:
            try:
                data = self._socket.recv(max(65536, min(num_bytes - len(self._buffer), 4 << 20)))
            except TimeoutError:
                self._check_silence()
                continue
            except OSError as error:
                raise LostError(str(error)) from error
            if not data:
                raise LostError("the fetcher hung up")
            self._heard_at = time.monotonic()
            self._buffer += data


# --- Starting -----------------------------------------------------------------------------------------------


def connect(silence_s: float) -> Connection:
    """Connect to the fetcher of this user, starting it if there is none."""
    with WaitingFor("the fetcher to start"):
        return _connect(meeting(), silence_s)


def _connect(place: Meeting, silence_s: float) -> Connection:
    found = _try_connect(place, silence_s)
    if found is not None:
        return found
    lock = lock_within(place.lock, 2 * _START_S)
    try:
        found = _try_connect(place, silence_s)  # another client may have been quicker
        for _ in range(_STARTS):
            if found is not None:
                return found
            if _start(place):
                found = _try_connect(place, silence_s)
    finally:
        lock.close()
    if found is None:
        raise FetcherError(f"the fetcher was started {_STARTS} times and died each time: {_last_words(place)}")
    return found


def _try_connect(place: Meeting, silence_s: float) -> Connection | None:
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    raw.settimeout(silence_s)
    try:
        raw.connect(os.fspath(place.socket))
    except (FileNotFoundError, ConnectionRefusedError):
        raw.close()
        return None
    except OSError as error:
        raw.close()
        raise FetcherError(f"cannot connect to the fetcher at {place.socket}: {error.strerror}") from error
    try:
        check_peer(raw)
        connection = Connection(raw, silence_s)
        connection.open_request(0)
        connection.send({"op": "hello", "id": 0, "protocol": PROTOCOL})
        answer, _ = connection.next_answer(0)
        connection.close_request(0)
    except LostError:  # it was just leaving
        return None
    except BaseException:
        raw.close()
        raise
    if "error" in answer:
        connection.close()
        raise load_error(answer["error"])
    return connection


def _start(place: Meeting) -> bool:
    """Start a fetcher of its own session and wait until it listens; tell whether it does, or has died before."""
    reading, writing = os.pipe()
    try:
        log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", _PROGRAM, str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(place),
                cwd="/",
                pass_fds=(writing,),
                start_new_session=True,
            )
        except OSError as error:
            raise FetcherError(f"the fetcher cannot be started with {sys.executable}: {error.strerror}") from error
        finally:
            os.close(log)
            os.close(writing)
        words = _wait_ready(reading)
        process.wait(_START_S)  # it has handed over to its child
    finally:
        os.close(reading)
    return words == READY


def _wait_ready(reading: int) -> bytes:
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        if not selector.select(_START_S):
            raise FetcherError(f"the fetcher did not start within {_START_S:g} s: the machine may be overloaded")
    return os.read(reading, len(READY))


def _last_words(place: Meeting) -> str:
    try:
        text = place.log.read_text(errors="replace")
    except OSError:
        return "it left no message"
    return text.strip()[-2000:] or "it left no message"


def _environment(place: Meeting) -> dict[str, str]:
    """Give only what Python itself and the network need: settings of stores come with each request."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES) or name.lower() in _PROXIES
    }
    paths = [str(package_root()), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths), "PENSTOCK_RUNTIME_DIR": str(place.folder)}


# --- Asking -------------------------------------------------------------------------------------------------


class Client:
    """This process's line to the fetcher, shared by all its caches.

    A line that breaks is made anew: each cache then says again what it had said, and asks again what it waits for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._numbers = itertools.count(1)
        self._groups: dict[int, Callable[[], list[Header]]] = {}
        self._lost_at: deque[float] = deque(maxlen=_RESTARTS)
        self._is_stopped = False
        self._on_warnings: dict[int, Callable[[list[str]], None]] = {}

    @property
    def is_connected(self) -> bool:
        """Whether a fetcher serves this process now."""
        connection = self._connection
        return connection is not None and not connection.is_lost

    def join(self, group: int, introduce: Callable[[], list[Header]], on_warnings: Callable[[list[str]], None]) -> None:
        """Add a cache, whose messages of introduction are sent on every new line. Nothing is started yet."""
        with self._lock:
            self._groups[group] = introduce
            self._on_warnings[group] = on_warnings
            connection = self._connection
        if connection is not None and not connection.is_lost:
            with suppress(LostError):  # the next request makes a new line, and introduces everybody
                self._introduce(connection, group)

    def leave(self, group: int) -> bool:
        """Remove a cache; with the last one the line is closed. Tells whether it was the last."""
        with self._lock:
            self._groups.pop(group, None)
            self._on_warnings.pop(group, None)
            connection = self._connection
            is_last = not self._groups
            if is_last:
                self._connection = None
        if connection is not None:
            if is_last:
                connection.close()
            else:
                self.note({"op": "unregister", "group": group})
        return is_last

    def stop(self) -> None:
        """Have everybody who waits for an answer fail at once, and whoever asks from now on."""
        self._is_stopped = True
        connection = self._connection
        if connection is not None:
            connection.close()

    def note(self, header: Header) -> None:
        """Send what needs no answer, if there is anybody to hear it."""
        connection = self._connection
        if connection is not None and not connection.is_lost:
            with suppress(LostError):  # nobody to hear it: a new fetcher starts from what the directories show
                connection.send(header)

    def request(self, header: Header, *, on_progress: Callable[[Header], None] | None = None) -> tuple[Header, bytes]:
        """Ask and wait; a fetcher that dies meanwhile is replaced and asked again."""
        while True:
            connection = None if self._is_stopped else self._connect()
            if connection is None or self._is_stopped:
                raise FetcherError("the line to the fetcher was closed before it had answered")
            try:
                return self._ask(connection, header, on_progress)
            except LostError as error:
                self._note_loss(connection, error)

    def _ask(
        self, connection: Connection, header: Header, on_progress: Callable[[Header], None] | None
    ) -> tuple[Header, bytes]:
        number = next(self._numbers)
        connection.open_request(number)
        try:
            connection.send(header | {"id": number})
            while True:
                answer, payload = connection.next_answer(number)
                if "progress" in answer:
                    if on_progress is not None:
                        on_progress(answer["progress"])
                    continue
                if "error" in answer:
                    raise load_error(answer["error"])
                return answer["ok"], payload
        finally:
            connection.close_request(number)

    def _connect(self) -> Connection:
        with self._lock:
            connection = self._connection
            while connection is None or connection.is_lost:
                connection = connect(float(os.environ.get(SILENCE_VARIABLE) or _SILENCE_S))
                try:
                    for group in list(self._groups):
                        self._introduce(connection, group)
                except LostError as error:  # it died as soon as it was asked
                    self._note_loss(connection, error)
            self._connection = connection
            return connection

    def _introduce(self, connection: Connection, group: int) -> None:
        for header in self._groups[group]():
            answer, _ = self._ask(connection, header, None)
            if answer.get("warnings"):
                self._on_warnings[group](answer["warnings"])

    def _note_loss(self, connection: Connection, error: LostError) -> None:
        connection.close()
        if not connection.is_first_to_mourn():
            return
        now = time.monotonic()
        self._lost_at.append(now)
        if len(self._lost_at) == _RESTARTS and now - self._lost_at[0] < _RESTARTS_WITHIN_S:
            raise FetcherError(
                f"the fetcher died {_RESTARTS} times within a minute ({error}): {_last_words(meeting())}"
            ) from error
