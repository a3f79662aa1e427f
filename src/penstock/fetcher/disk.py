"""The disk of a cache: how full it is, how files come to it, and when they are surely on it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.cachedir.ledger import flush_file
from penstock.errors import ConfigError
from penstock.outside_text import ASCII, Bounded
from penstock.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.cachedir.ledger import Ledger, Record

_log = logging.getLogger("penstock.cache")
# How long after it came a file is flushed: by then the system has written most of it by itself, and to hurry it along
# would take the disk from what comes next.
_DELAY_S = 10.0
_LAST_FILES_S = 2.0
RESERVE_VARIABLE = "PENSTOCK_DISK_RESERVE"
# Of a large disk a few per cent are more than anybody needs to stay clear of trouble.
_DEFAULT_PART = 0.03
_DEFAULT_MOST_BYTES = 10 << 30
_PERCENT = Bounded(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", 64, ASCII)


# --- How full it is, and how much is left to others ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reserve:
    """What caches leave free of a disk: a part of it, a number of bytes, or the smaller of both."""

    part: float = 1.0
    most_bytes: int | None = None

    def of(self, total_bytes: int) -> int:
        """Give the bytes to leave free of a disk of this size."""
        num_bytes = int(self.part * total_bytes)
        return num_bytes if self.most_bytes is None else min(num_bytes, self.most_bytes)


def parse_reserve(text: str | None) -> Reserve:
    """Read a setting such as "5gb" or "3%"; nothing means the default."""
    if not text:
        return Reserve(_DEFAULT_PART, _DEFAULT_MOST_BYTES)
    percent = _PERCENT.fullmatch(text)
    try:
        if percent is None:
            return Reserve(most_bytes=parse_bytes(text))
    except ConfigError as error:
        raise ConfigError(f"{RESERVE_VARIABLE}: {error}, or a share of the disk, like '3%'") from error
    if float(percent[1]) > 100:
        raise ConfigError(f"{RESERVE_VARIABLE}: {text!r} is more than the whole disk")
    return Reserve(float(percent[1]) / 100)


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system as it is now."""

    device: int
    total_bytes: int
    free_bytes: int


def measure_disk(directory: Path) -> Disk | None:
    """Look at the file system that a directory is on, or will be on; None if it does not say how large it is."""
    for folder in (directory, *directory.parents):
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            space = os.statvfs(folder)
            if not space.f_blocks:
                return None
            return Disk(folder.stat().st_dev, space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize)
    return None


def describe_full(directory: Path, disk: Disk, left_bytes: int) -> str:
    """Say what happens on a disk that is nearly full."""
    return (
        f"the disk of {directory} is nearly full ({format_bytes(disk.free_bytes)} free), so penstock removes shards"
        f" that are not in use from the caches on it, to leave {format_bytes(left_bytes)} for others. Set a cache_limit"
        f" that leaves enough room, or set {RESERVE_VARIABLE} to leave more or less"
    )


# --- Files on their way: pieces land in any order, and late pieces land nowhere -----------------------------


class PartFile:
    """Written by several threads at once.

    A piece that was given up on may still come: it must not write into whatever file has got the descriptor since.
    So the descriptor lives until its last writer has left. It takes room on the disk as bytes arrive, not before: what
    an index declares is only a claim.
    """

    def __init__(self, path: Path, mode: int) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._writers = 0
        self._is_closed = False
        self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

    def write(self, data: Buffer, begin: int) -> None:
        """Put bytes at their place; nothing happens once the file is closed."""
        with self._lock:
            if self._is_closed:
                return
            self._writers += 1
        try:
            view = memoryview(data).cast("B")
            while len(view):
                written = os.pwrite(self._number, view, begin)
                view, begin = view[written:], begin + written
        finally:
            with self._lock:
                self._writers -= 1
                self._close_if_unused()

    def close(self) -> None:
        """Take no more pieces."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._close_if_unused()

    def discard(self) -> None:
        """Close and remove."""
        self.close()
        with suppress(FileNotFoundError):
            self.path.unlink()

    def _close_if_unused(self) -> None:
        if self._is_closed and not self._writers and self._number >= 0:
            os.close(self._number)
            self._number = -1


# --- Files that can be trusted after a loss of power --------------------------------------------------------


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
                _log.warning("cannot flush %s in %s to the disk: %s", record.name, directory, error)

    def _next(self) -> _Waiting | None:
        """Wait for a file whose time has come; None: there will be no more."""
        with self._changed:
            while not self._is_closed:
                left_s = self._waiting[0].due_at - time.monotonic() if self._waiting else None
                if left_s is not None and left_s <= 0:
                    break
                self._changed.wait(left_s)
            return self._waiting.popleft() if self._waiting else None
