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
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.cache.connection import Connection, LostError
from penstock.cachedir.lock import lock_within
from penstock.errors import FetcherError
from penstock.interrupts import WaitingFor
from penstock.wire.address import READY, Meeting, check_peer, meeting, package_root
from penstock.wire.frames import PROTOCOL, Header, load_error
from penstock.wire.share import UNHEARD, load_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.wire.share import Share

SILENCE_VARIABLE = "PENSTOCK_FETCHER_SILENCE_S"
_SILENCE_S = 30.0
_START_S = 60.0
_STARTS = 4  # of a fetcher that dies before it serves anybody
_RESTARTS = 5
_RESTARTS_WITHIN_S = 60.0
_KEPT_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "VIRTUAL_ENV")
_KEPT_PREFIXES = ("LANG", "LC_", "LD_", "DYLD_", "PYTHON", "SSL_CERT_", "PENSTOCK_", "MALLOC_", "COV_CORE_")
# The fork leaves no child for the client to collect. It comes before the imports, which may start threads.
_PROGRAM = "import os; os.fork() and os._exit(0); from penstock.fetcher.main import main; main()"
_PROXIES = {"http_proxy", "https_proxy", "no_proxy", "all_proxy"}


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
    except BaseException:
        raw.close()
        raise
    connection = Connection(raw, silence_s)
    try:
        connection.open_request(0)
        connection.send({"op": "hello", "id": 0, "protocol": PROTOCOL})
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


class Member(NamedTuple):
    """A cache of this process, as its line to the fetcher knows it."""

    introduce: Callable[[], list[Header]]  # gives its messages of introduction
    on_warnings: Callable[[list[str]], None]
    on_share: Callable[[Share], None]  # called by the thread that reads the line; must not wait for an answer


class Client:
    """This process's line to the fetcher, shared by all its caches.

    A line that breaks is made anew: each cache then says again what it had said, and asks again what it waits for.
    Until then it keeps nothing open that it does not read, since nobody can ask for it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # never held while anything is waited for
        self._connecting = threading.Lock()
        self._hearing = threading.RLock()
        self._heard: Connection | None = None
        self._connection: Connection | None = None
        self._numbers = itertools.count(1)
        self._members: dict[int, Member] = {}
        self._lost_at: deque[float] = deque(maxlen=_RESTARTS)
        self._is_stopped = False

    @property
    def is_connected(self) -> bool:
        """Whether a fetcher serves this process now."""
        connection = self._connection
        return connection is not None and not connection.is_lost

    def join(self, group: int, member: Member) -> None:
        """Add a cache, which is introduced on every new line. Nothing is started yet."""
        with self._lock:
            self._members[group] = member
            connection = self._connection
        if connection is not None and not connection.is_lost:
            with suppress(LostError):  # the next request makes a new line, and introduces everybody
                self._introduce(connection, group)

    def leave(self, group: int) -> bool:
        """Remove a cache; with the last one the line is closed. Tells whether it was the last."""
        with self._lock:
            self._members.pop(group, None)
            connection = self._connection
            is_last = not self._members
            if is_last:
                self._connection = None
        if connection is not None:
            if is_last:
                connection.close()
                connection.wait_closed()
            else:
                self.note({"op": "unregister", "group": group})
        return is_last

    def stop(self) -> None:
        """Have everybody who waits for an answer fail at once, and whoever asks from now on."""
        self._is_stopped = True
        connection = self._connection
        if connection is not None:
            connection.close()

    def _hang_up_if_left(self) -> None:
        """Close a line that was made while the last cache was leaving."""
        with self._lock:
            left = self._connection if not self._members else None
            if left is not None:
                self._connection = None
        if left is not None:
            left.close()

    def connect(self) -> None:
        """Have a line, over which the fetcher can say what it wants of this process."""
        self._connect()

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
            finally:
                self._hang_up_if_left()

    def _ask(
        self, connection: Connection, header: Header, on_progress: Callable[[Header], None] | None
    ) -> tuple[Header, bytes]:
        number = next(self._numbers)
        connection.open_request(number)
        is_answered = False
        try:
            connection.send(header | {"id": number})
            while True:
                answer, payload = connection.next_answer(number)
                if "progress" in answer:
                    if on_progress is not None:
                        on_progress(answer["progress"])
                    continue
                is_answered = True
                if "error" in answer:
                    raise load_error(answer["error"])
                return answer["ok"], payload
        finally:
            connection.close_request(number)
            if not is_answered and not connection.is_lost:  # somebody was interrupted: what he asked for can stay
                with suppress(LostError):
                    connection.send({"op": "withdraw", "request": number})

    def _connect(self) -> Connection:
        with self._connecting:
            connection = self._connection
            while connection is None or connection.is_lost:
                connection = connect(float(os.environ.get(SILENCE_VARIABLE) or _SILENCE_S))
                self._listen_to(connection)
                try:
                    self._introduce_all(connection)
                except LostError as error:  # it died as soon as it was asked
                    self._note_loss(connection, error)
                except BaseException:
                    connection.close()  # or its thread would keep it, and the fetcher, alive
                    raise
            return connection

    def _introduce_all(self, connection: Connection) -> None:
        """Introduce every cache on a new line, also those that come meanwhile, and say which have left since."""
        introduced: set[int] = set()
        while True:
            with self._lock:
                strangers = self._members.keys() - introduced
                if not strangers:
                    self._connection = connection
                    gone = introduced - self._members.keys()
                    break
            for group in sorted(strangers):
                self._introduce(connection, group)
            introduced |= strangers
        for group in gone:
            connection.send({"op": "unregister", "group": group})

    def _introduce(self, connection: Connection, group: int) -> None:
        member = self._members.get(group)
        if member is None:
            return
        for header in member.introduce():
            answer, _ = self._ask(connection, header, None)
            if answer.get("warnings"):
                member.on_warnings(answer["warnings"])

    def _listen_to(self, connection: Connection) -> None:
        """Hear what the fetcher says unasked over this line, and no longer over one before."""
        with self._hearing:
            self._heard = connection
        connection.listen(partial(self._hear, connection))

    def _hear(self, connection: Connection, news: Header | None) -> None:
        """Take what a cache may keep open; without a line, nothing. Takes no lock that a request may hold."""
        with self._hearing:
            if connection is not self._heard:
                return  # the end of an old line says nothing about the new one
            if news is None:
                told = [(member, UNHEARD) for member in list(self._members.values())]
            else:
                found = self._members.get(int(news["group"]))
                told = [] if found is None else [(found, load_share(news["share"]))]
            for member, share in told:
                member.on_share(share)

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
