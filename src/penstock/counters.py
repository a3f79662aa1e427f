"""Counts of several processes in one file: each counts into its own row of it, and anybody adds the rows up.

A row is mapped into memory, so to count is to write a number, and to look is to read the file: nobody is asked.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.processes import PerProcess
from penstock.shared_file import SharedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_log = logging.getLogger("penstock.data")
_NUMBER_BYTES = 8
_LOCKS = 1 << 40  # where the locks of rows lie: beyond all data
_NOBODYS = 0  # what a row begins with: who counts in it, the number of a worker from 1 on


class Counts(NamedTuple):
    """What was counted by one worker, or by the process itself."""

    worker: int | None
    numbers: dict[str, int]


class Row:
    """The counts of this process. Safe for threads."""

    def __init__(self, numbers: memoryview, places: Mapping[str, int], *, is_shared: bool) -> None:
        self._numbers, self._places, self.is_shared = numbers, places, is_shared
        self._lock = threading.RLock()

    def add(self, amounts: Mapping[str, int]) -> None:
        """Count something, by name."""
        numbers, places = self._numbers, self._places
        with self._lock:
            for name, amount in amounts.items():
                numbers[places[name]] += amount

    def read(self) -> dict[str, int]:
        """Return all counts."""
        return {name: self._numbers[place] for name, place in self._places.items()}


def private_row(names: Sequence[str]) -> Row:
    """Return a row that nobody else sees."""
    numbers = memoryview(bytearray(_NUMBER_BYTES * (len(names) + 1))).cast("q")
    return Row(numbers, _places(names), is_shared=False)


def _places(names: Sequence[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names, start=1)}


class Counters:
    """Whole numbers with names, counted in this process and in its loaders' workers, of now and of earlier passes.

    Args:
        names: What is counted.
        worker_number: Gives the number of this worker, None in a process that is nobody's worker.
    """

    def __init__(self, names: Sequence[str], worker_number: Callable[[], int | None]) -> None:
        self._places = _places(names)
        self._row_bytes = -(-_NUMBER_BYTES * (len(names) + 1) // mmap.ALLOCATIONGRANULARITY)
        self._row_bytes *= mmap.ALLOCATIONGRANULARITY
        self._file = SharedFile(partial(_is_worker, worker_number), is_copied=False)
        self._row = PerProcess(partial(_take_row, self._file, self._row_bytes, self._places, worker_number))

    def row(self) -> Row:
        """Return what this process counts into."""
        return self._row.get()

    def read(self) -> list[Counts]:
        """Return what was counted so far by the process itself, if it counts, and by each worker number in turn."""
        rows = np.frombuffer(self._file.read(), np.int64).reshape(-1, self._row_bytes // _NUMBER_BYTES)
        owners = rows[:, 0]
        totals = {int(who): rows[owners == who].sum(axis=0) for who in np.unique(owners[owners != _NOBODYS])}
        counts = [
            Counts(who - 1, {name: int(row[at]) for name, at in self._places.items()}) for who, row in totals.items()
        ]
        own = self._row.made
        return counts if own is None or own.is_shared else [Counts(None, own.read()), *counts]


def _is_worker(worker_number: Callable[[], int | None]) -> bool:
    return worker_number() is not None


def _take_row(
    file: SharedFile, row_bytes: int, places: Mapping[str, int], worker_number: Callable[[], int | None]
) -> Row:
    """Return a row that is this process's as long as it lives: one that a worker of this number left, or a new one.

    Who is nobody's worker keeps its own: only workers are read by another process.
    """
    number = worker_number()
    if number is None:
        return private_row(list(places))
    who = 1 + number
    row = 0
    try:
        while not _take(file.descriptor, row, row_bytes, who):
            row += 1
        mapped = mmap.mmap(file.descriptor, row_bytes, offset=row * row_bytes)
    except OSError as error:
        _log.warning(
            "cannot make the file in which processes share their counts, so stats() leaves out what this process"
            " counts: %s",
            error,
        )
        return private_row(list(places))
    return Row(memoryview(mapped).cast("q"), places, is_shared=True)


def _take(descriptor: int, row: int, row_bytes: int, who: int) -> bool:
    """Lock a row that is nobody's, or of this worker number and left; the kernel unlocks those of the dead."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LOCKS + row)
    except (BlockingIOError, PermissionError):
        return False
    begins = os.pread(descriptor, _NUMBER_BYTES, row * row_bytes)
    whose = int.from_bytes(begins, sys.byteorder) if len(begins) == _NUMBER_BYTES else _NOBODYS
    if whose == _NOBODYS:
        # All of it, not only its end: a full disk is an error here, and would be the end of a process that maps a hole.
        os.pwrite(descriptor, who.to_bytes(_NUMBER_BYTES, sys.byteorder).ljust(row_bytes, b"\0"), row * row_bytes)
    elif whose != who:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, _LOCKS + row)
        return False
    return True
