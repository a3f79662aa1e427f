"""The node's fetcher: a process of its own, started by the first client that needs it, ended by the last that leaves.

Its one argument is the descriptor on which it says that it listens. What its client is about to ask for was requested
before this file, and all that it imports, was read (`wire/ahead.py`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import socket
import sys
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, TextIO

from penstock.cachedir.lock import Stripes, try_hold_file
from penstock.failpoints import failpoint
from penstock.fetcher.counts import FetcherCounts
from penstock.fetcher.opening import IndexOpener
from penstock.fetcher.pieces import PiecePool
from penstock.fetcher.reads import ObjectReader
from penstock.fetcher.rooms import Rooms
from penstock.fetcher.scheduler import Scheduler
from penstock.fetcher.server import Server
from penstock.fetcher.transfer import Tools
from penstock.wire.address import READY, fetcher_address

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.fetcher.kept_scan import KeptScan
    from penstock.fetcher.transfer import Transfer
    from penstock.index.model import Index
    from penstock.storage.base import ObjectInfo
    from penstock.wire.ahead import IndexesAhead

_LAST_WORDS_S = 2.0  # to remove unfinished files
_MOST_LOGGED = 4096  # characters of one record: clients, and stores, may send anything
_MOST_LOG_BYTES = 16 << 20
_SET_DUMPABLE = 4  # PR_SET_DUMPABLE of <sys/prctl.h>
_ALONE_S = 1.0  # for which a successor waits: a disk that hangs may keep us from leaving for ever


def main(ahead: IndexesAhead | None = None) -> None:
    """Run until the last client has left."""
    ready = int(sys.argv[1])
    gc.freeze()
    gc.enable()
    failpoint("start.begun")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what lies in memory may be secret
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=[BoundedLog(sys.stderr)]
    )
    address = fetcher_address()
    listener = _listen(address.socket)
    failpoint("start.listening")
    leaving = ExitStack()  # closes the lock that no other may take until the socket is gone

    def may_leave() -> bool:
        """Leave only if no client is about to connect, and hold the others off until the socket is gone."""
        with suppress(FileNotFoundError):  # the folder was removed, which we must not make anew: we are alone
            lock = try_hold_file(address.lock, os.O_RDWR)
            if lock is None:
                return False
            leaving.enter_context(lock)
            address.socket.unlink()
        return True

    scheduler = open_scheduler(ahead)
    asyncio.run(Server(scheduler, listener).run(lambda: _say_ready(ready, ahead), may_leave))
    make_way = threading.Timer(_ALONE_S, leaving.close)
    make_way.daemon, make_way.name = True, "penstock-leaving"
    make_way.start()
    scheduler.close()
    scheduler.join(_LAST_WORDS_S)
    logging.shutdown()
    os._exit(0)  # a thread may hang in a store that does not answer


def open_scheduler(ahead: IndexesAhead | None = None) -> Scheduler:
    """Put the parts together that fetch, for this process or for the clients of a server."""
    stripes, counts = Stripes(), FetcherCounts()
    tools = Tools(stripes, Rooms(stripes), PiecePool(counts), counts, _open_index, ahead)
    reader = ObjectReader(tools.pool, counts, tools.handles, tools.watch)
    return Scheduler(tools, IndexOpener(tools, _keep_scan).open, reader)


def _open_index(path: Path) -> Index:
    from penstock.cachedir.once import keep_index  # with NumPy, which most fetchers never need
    from penstock.index.catalog import parse_index_file

    return keep_index(path.parent.name, path.stat().st_size, lambda: parse_index_file(path, str(path)))


def _keep_scan(tools: Tools, job: Transfer, info: ObjectInfo) -> KeptScan | None:
    from penstock.fetcher.kept_scan import keep_scan  # as above

    return keep_scan(tools, job, info)


def _listen(path: Path) -> socket.socket:
    """Take the address; the process that started us holds its lock, so what lies there is stale."""
    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(os.fspath(path))
    listener.listen(256)
    return listener


def _say_ready(ready: int, ahead: IndexesAhead | None) -> None:
    if ahead is not None:
        ahead.note_listening()
    os.write(ready, READY)
    os.close(ready)
    failpoint("start.ready")
    keep_memory_private()


def keep_memory_private() -> None:
    """Have the kernel write no core dump, also where it pipes them to a program, and let no debugger in."""
    if sys.platform == "linux":
        import ctypes  # which takes a while to load: now the first client no longer waits

        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


class BoundedLog(logging.StreamHandler[TextIO]):
    """Cuts long records, and begins a log file anew that has become large: what clients send does not fill the disk."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record, its beginning and its end if it is long."""
        text = super().format(record)
        half, left_out = _MOST_LOGGED // 2, len(text) - _MOST_LOGGED
        return text if left_out <= 0 else f"{text[:half]} … {left_out} characters … {text[-half:]}"

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        with suppress(OSError, ValueError):  # it is no file
            if os.fstat(self.stream.fileno()).st_size > _MOST_LOG_BYTES:
                os.ftruncate(self.stream.fileno(), 0)
        super().emit(record)
