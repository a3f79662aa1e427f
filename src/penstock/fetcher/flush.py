"""Brings published files to the disk in the background, so that they can be trusted after a loss of power."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from penstock.cachedir.boot import flush_file

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.cachedir.ledger import Ledger, Record

# By then the system has written most of a file by itself. To hurry it along would take the disk from what comes next.
_DELAY_S = 10.0
_LAST_FILES_S = 2.0
_log = logging.getLogger("penstock.cache")


class _Waiting(NamedTuple):
    directory: Path
    record: Record
    ledger: Ledger
    due_at: float


class Flusher:
    """One thread, started with the first file. What it does not get to is not trusted after the next boot."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, directory: Path, record: Record, ledger: Ledger) -> None:
        """Flush the files of a record some time soon."""
        with self._changed:
            self._waiting.append(_Waiting(directory, record, ledger, time.monotonic() + _DELAY_S))
            if len(self._waiting) == 1:
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="penstock-flush", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Flush what waits now, but do not take long: a disk may be slow."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_LAST_FILES_S)

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            directory, record, ledger, _ = waiting
            try:
                for file in record.files:
                    flush_file(directory / file.name)
                ledger.note_flushed(record)
            except FileNotFoundError:
                continue  # it was evicted meanwhile
            except OSError as error:
                _log.warning("%s in %s cannot be flushed: %s", record.name, directory, error)

    def _next(self) -> _Waiting | None:
        """Wait for a file whose time has come; None: there will be no more."""
        with self._changed:
            while not self._is_closed:
                left_s = self._waiting[0].due_at - time.monotonic() if self._waiting else None
                if left_s is not None and left_s <= 0:
                    break
                self._changed.wait(left_s)
            return self._waiting.popleft() if self._waiting else None
