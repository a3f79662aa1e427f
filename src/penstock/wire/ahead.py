"""The indexes that a client is about to ask for: the fetcher that it starts reads them while it is still starting.

The start of a fetcher is imports, and the answer of a store a round trip: both then pass at the same time. What it
takes to open the stores comes over a pipe, filled before there is a fetcher, so that neither ever waits for the other.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import AccessDeniedError, ObjectNotFoundError
from penstock.storage.base import StoreSettings, open_store, url_scheme
from penstock.storage.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from typing_extensions import Buffer

    from penstock.storage.base import ObjectInfo
    from penstock.storage.object import ObjectStore
    from penstock.wire.settings import CachedStream

    First = tuple[Buffer, ObjectInfo]

FIRST_BYTES = 1 << 20  # of an index; most are no larger
_MOST_INDEXES = 8  # each is read by a thread of its own
NOTHING = b'["", []]'  # what is given to a fetcher that is to read none
_NEAR = (None, "file", "memory")
# Who asks so long after the fetcher listens wants to know what the store has then. Its start does not count, however
# long the imports take: who started it has been waiting all the time.
_FRESH_S = 1.0

_log = logging.getLogger("penstock.cache")


# --- The client ---------------------------------------------------------------------------------------------


def pack_ahead(key: str, streams: Iterable[CachedStream]) -> bytes:
    """Name the stores of some streams, as many as a pipe surely takes at once."""
    asked: list[Any] = []
    packed = NOTHING
    for stream in streams:
        may_be_there = stream.files is None or stream.files.may_have_index
        if url_scheme(stream.store.url) in _NEAR or not may_be_there or len(asked) == _MOST_INDEXES:
            continue
        asked.append([stream.store.url, stream.store.options, stream.retry, stream.timeout_s])
        longer = json.dumps([key, asked]).encode()
        if len(longer) > select.PIPE_BUF:
            break
        packed = longer
    return packed


def open_ahead(packed: bytes) -> int:
    """Return the end of a pipe that a fetcher finds these bytes at."""
    reading, writing = os.pipe()
    try:
        os.write(writing, packed)
    finally:
        os.close(writing)
    return reading


# --- The fetcher --------------------------------------------------------------------------------------------


class IndexRead:
    """The first bytes of an object, as they come; its store is asked once."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self.settings, self.key = store.settings, key
        self._store = store
        self._found: First | None = None
        self._refusal: ObjectNotFoundError | AccessDeniedError | None = None
        store.connect()  # not in the thread, which would have to wait for the imports of this one again and again
        self._thread = threading.Thread(target=self._read, name="penstock-first", daemon=True)
        self._thread.start()

    def wait(self, fresh_until: float) -> First | None:
        """Return what has come, or raise what the store has said; None: too long ago, or better asked for again."""
        is_fresh = self._thread.is_alive() or time.monotonic() < fresh_until
        self._thread.join()
        if is_fresh and self._refusal is not None:
            raise self._refusal
        # A server that sends no ranges: those who read on have to find that out, too.
        return self._found if is_fresh and self._store.ranges.are_sent else None

    def _read(self) -> None:
        with _errors_met_again():
            try:
                self._found = self._store.read_first(self.key, FIRST_BYTES)
            except (ObjectNotFoundError, AccessDeniedError) as error:
                self._refusal = error


@contextmanager
def _errors_met_again() -> Iterator[None]:
    """Log an error: a later question for the same meets it again, and is told why."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        _log.info("an index could not be read ahead: %s", error)


class IndexesAhead:
    """What is read ahead, each for the first who asks for it. Safe for threads."""

    def __init__(self, packed: bytes) -> None:
        """Ask for what a client has named, where this process has one connection to a store for all who use it."""
        self._lock = threading.Lock()
        self._reads: list[IndexRead] = []
        self._fresh_until = math.inf
        key, asked = json.loads(packed)
        for url, options, *how in asked:
            with _errors_met_again():
                from penstock.storage.object import ObjectStore

                store = open_store(StoreSettings(url, options), retry=replace(RetryPolicy.of(*how), attempts=1))
                if isinstance(store, ObjectStore):
                    self._reads.append(IndexRead(store, key))

    def note_listening(self) -> None:
        """Note that clients can ask from now on."""
        self._fresh_until = time.monotonic() + _FRESH_S

    def take(self, settings: StoreSettings, key: str) -> First | None:
        """Return the first bytes of an object, after waiting if they are being read; None: it was not asked for."""
        with self._lock:
            found = next((read for read in self._reads if (read.settings, read.key) == (settings, key)), None)
            if found is None:
                return None
            self._reads.remove(found)
        return found.wait(self._fresh_until)
