"""Finds the node's fetcher, and starts it if there is none."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
from contextlib import nullcontext

from penstock.cache.connection import FetcherConnection, LostError
from penstock.cachedir.lock import lock_within
from penstock.errors import FetcherError
from penstock.interrupts import WaitingFor
from penstock.wire.address import READY, FetcherAddress, check_peer, fetcher_address, package_root
from penstock.wire.ahead import NOTHING, open_ahead
from penstock.wire.frames import PROTOCOL, load_error
from penstock.wire.messages import Hello

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
