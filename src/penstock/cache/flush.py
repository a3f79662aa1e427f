"""Brings published files to the disk in the background, so that they can be trusted after a loss of power."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING

from penstock.cache.boot import flush_file

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.cache.ledger import Ledger, Record

_LAST_FILES_S = 2.0
_log = logging.getLogger("penstock.cache")


class Flusher:
    """One thread, started with the first file. What it does not get to is not trusted after the next boot."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Path, Record, Ledger] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, directory: Path, record: Record, ledger: Ledger) -> None:
        """Flush the files of a record some time soon."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="penstock-flush", daemon=True)
                self._thread.start()
        self._waiting.put((directory, record, ledger))

    def close(self) -> None:
        """End the thread after what waits, but do not wait long: a disk may be slow."""
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(_LAST_FILES_S)

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            directory, record, ledger = work
            try:
                for file in record.files:
                    flush_file(directory / file.name)
                ledger.note_flushed(record)
            except FileNotFoundError:
                continue  # it was evicted meanwhile
            except OSError as error:
                _log.warning("%s in %s cannot be flushed: %s", record.name, directory, error)
