"""Counts: what `stats()` returns under names that stay, and the file in which the processes of a rank count it.

Each process counts into its own row of the file. A row is mapped into memory, so to count is to write a number, and to
look is to read the file: no process is asked. The names that are counted follow from the fields that are returned.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from multiprocessing import context, reduction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.errors import FetcherError
from penstock.processes import PerProcess, abandon_in_children, claim_before_forks
from penstock.runtime import make_runtime_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_log = logging.getLogger("penstock.data")
_NUMBER_BYTES = 8
_LOCKS = 1 << 40  # where the locks of rows lie: beyond all data
_NONE = -1  # no file
_NO_OWNER = 0  # what a row begins with: who counts in it, the number of a worker from 1 on


class SharedFile:
    """A file without a name, which a process shares with the workers that it starts: forked, spawned, by a fork server.

    Workers die after each pass unless they are persistent, and any of them may be killed. Such a file is inherited,
    costs nothing to share, and vanishes with the last process that holds it. A process that is no worker, such as a
    rank, has one of its own.

    Args:
        is_worker: Tells whether this process is a worker of the one that gave it the file.
        is_copied: Whether a file of one's own begins with what the one before held, or empty.
    """

    def __init__(self, is_worker: Callable[[], bool], *, is_copied: bool) -> None:
        self._is_worker, self._is_copied = is_worker, is_copied
        self._descriptor = _NONE  # until it is needed: who has hundreds of datasets has no descriptor to waste
        self.is_new = True  # made here, not shared by the process that pickled it
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Find out anew whose file this is, as in a forked child."""
        self._is_claimed = False
        self._lock = threading.RLock()  # a signal handler may come while it is held, and take a state
        abandon_in_children(self)
        claim_before_forks(self)

    @property
    def descriptor(self) -> int:
        """The descriptor to read and write."""
        self.claim()
        return self._descriptor

    def claim(self) -> None:
        """Find out whose file this is, once in each process: its parent's, if it is a worker, else one of its own."""
        if self._is_claimed:
            return
        with self._lock:
            if self._descriptor == _NONE:
                self._descriptor = _open_nameless()
            elif not self._is_claimed and not self._is_worker():
                self._leave()
            self._is_claimed = True

    def read(self) -> bytes:
        """Return all that is in the file."""
        if self._descriptor == _NONE:
            return b""
        return os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 0)

    def _leave(self) -> None:
        shared = self._descriptor
        self._descriptor = _open_nameless()
        if self._is_copied:
            os.pwrite(self._descriptor, os.pread(shared, os.fstat(shared).st_size, 0), 0)
        os.close(shared)

    def __getstate__(self) -> dict[str, Any]:
        """Share the file with a worker that is being spawned; any other copy gets one of its own, which is empty."""
        state = {"is_worker": self._is_worker, "is_copied": self._is_copied}
        if context.get_spawning_popen() is not None:
            state["shared"] = reduction.DupFd(self.descriptor)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "shared" not in state:
            SharedFile.__init__(self, state["is_worker"], is_copied=state["is_copied"])
            return
        self._is_worker, self._is_copied = state["is_worker"], state["is_copied"]
        self._descriptor = state["shared"].detach()
        self.is_new = False
        self.after_fork_in_child()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when the interpreter ends
        if getattr(self, "_descriptor", -1) != -1:
            close(self._descriptor)


def _open_nameless() -> int:
    folder = None
    with suppress(FetcherError):  # what needs the folder for more than this says what is wrong with it
        folder = make_runtime_folder()
    with tempfile.TemporaryFile(prefix="penstock-", dir=folder) as file:
        return os.dup(file.fileno())


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
    """Return a row that no other process sees."""
    numbers = memoryview(bytearray(_NUMBER_BYTES * (len(names) + 1))).cast("q")
    return Row(numbers, _places(names), is_shared=False)


def _places(names: Sequence[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names, start=1)}


class Counters:
    """Whole numbers with names, counted in this process and in its loaders' workers, of now and of earlier passes.

    Args:
        names: What is counted.
        worker_number: Gives the number of this worker, None in a process that is no worker.
    """

    def __init__(self, names: Sequence[str], worker_number: Callable[[], int | None]) -> None:
        self._places = _places(names)
        self._row_bytes = -(-_NUMBER_BYTES * (len(names) + 1) // mmap.ALLOCATIONGRANULARITY)
        self._row_bytes *= mmap.ALLOCATIONGRANULARITY
        self._file = SharedFile(partial(_is_worker, worker_number), is_copied=False)
        self._row = PerProcess(partial(_take_row, self._file, self._row_bytes, self._places, worker_number))
        self.row = self._row.get  # what this process counts into

    def read(self) -> list[Counts]:
        """Return what was counted so far by the process itself, if it counts, and by each worker number in turn."""
        rows = np.frombuffer(self._file.read(), np.int64).reshape(-1, self._row_bytes // _NUMBER_BYTES)
        owners = rows[:, 0]
        totals = {int(who): rows[owners == who].sum(axis=0) for who in np.unique(owners[owners != _NO_OWNER])}
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

    A process that is no worker keeps its own: only workers are read by another process.
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
    """Lock a row that has no owner, or one of this worker number that left; the kernel unlocks those of the dead."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LOCKS + row)
    except (BlockingIOError, PermissionError):
        return False
    begins = os.pread(descriptor, _NUMBER_BYTES, row * row_bytes)
    whose = int.from_bytes(begins, sys.byteorder) if len(begins) == _NUMBER_BYTES else _NO_OWNER
    if whose == _NO_OWNER:
        # All of it, not only its end: a full disk is an error here, and would be the end of a process that maps a hole.
        os.pwrite(descriptor, who.to_bytes(_NUMBER_BYTES, sys.byteorder).ljust(row_bytes, b"\0"), row * row_bytes)
    elif whose != who:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, _LOCKS + row)
        return False
    return True


# --- What is returned ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """What was read of one stream, and what its cache did."""

    samples: int = 0  # read in passes: workers read ahead of what the training loop has taken
    bytes: int = 0  # of these samples as they are stored, unpacked, by the average of their stream
    cache_hits: int = 0  # how often a shard was opened that was there
    cache_waits: int = 0  # how often one was opened that had to be waited for
    downloads: int = 0  # files that were fetched because this rank wanted them, before others on its node did
    downloaded_bytes: int = 0  # as they came from the store, and of samples that were fetched by themselves
    downloads_again: int = 0  # of the downloads: of what had been fetched before, and was removed to make room


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats(StreamStats):
    """The same of all streams, and what the time of one worker went to; or the sum over several."""

    skipped: int = 0  # samples that could not be read, with `on_error="skip"`
    seconds_reading: float = 0.0  # opening shards that are there, taking stored values out of them
    seconds_waiting: float = 0.0  # for shards, or parts of them, that are not there
    seconds_decoding: float = 0.0  # making values of what is stored
    seconds_transforming: float = 0.0  # in your `sample_transform`, `batch_transform` or `get_item`
    seconds_collating: float = 0.0  # making batches of samples


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStats:
    """How the training loop fared that takes batches from a `StreamingDataLoader`."""

    batches: int = 0  # that it took
    seconds_starting: float = 0.0  # that it waited for the first batch of each pass
    seconds_waiting: float = 0.0  # that it waited for all others
    seconds_training: float = 0.0  # from getting a batch to asking for the next one
    waiting_share: float | None = None  # of the time after the first batch of each pass; None: there was none yet


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """What the fetcher of this node did since its start, for all processes of this user, and what it does now."""

    downloads: int = 0
    bytes: int = 0  # that came from stores, whatever for
    bytes_twice: int = 0  # of them, those that were read alone before their shard came as a whole
    retries: int = 0
    errors: int = 0
    evictions: int = 0  # files that were removed to make room
    evicted_bytes: int = 0
    in_flight: int = 0  # files that are being fetched now
    queued: int = 0
    pieces_in_flight: int = 0
    concurrency: int = 0  # pieces that it fetches at a time
    bytes_per_s: float = 0.0
    groups: int = 0  # datasets, in whatever process, that it fetches for
    directories: Mapping[str, int] = field(
        default_factory=dict
    )  # bytes in each cache directory, also of what is being fetched


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats(WorkerStats):
    """What `stats()` of a dataset or loader returns: sums over all workers of this rank, since the dataset was opened.

    docs/waiting.md explains each field. `loader.stats(flat=True)` returns the same as a dict of plain numbers.
    """

    streams: tuple[StreamStats, ...] = ()
    workers: Mapping[str, WorkerStats] = field(default_factory=dict)  # with `by_worker=True`: "0", "1", …, and "main"
    loop: LoopStats | None = None  # None: a loader other than `StreamingDataLoader` hides it
    uncounted_bytes: int = (
        0  # that tables and copies of indexes take in its cache folders besides what `cache_limit` counts
    )
    node: NodeStats = field(default_factory=NodeStats)  # zeros as long as nothing had to be fetched

    def flat(self) -> dict[str, float]:
        """Return all numbers by dotted name, such as `loop.waiting_share`; those of streams if there are several."""
        return dict(_flatten(self))


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, int | float):
        yield name, value
        return
    if is_dataclass(value):
        parts = {each.name: getattr(value, each.name) for each in fields(value) if each.name != "directories"}
    elif isinstance(value, dict):
        parts = value
    elif isinstance(value, tuple) and len(value) > 1:
        parts = {str(number): part for number, part in enumerate(value)}
    else:
        return
    for part, inside in parts.items():
        yield from _flatten(inside, f"{name}.{part}" if name else part)


# --- Names that are counted, and sums of them ------------------------------------------------------------------------

# What a cache counts is called there as it is here, after `cache_`; and of each stream the time that its cache waited.
_OF_STREAM = {each.name.removeprefix("cache_"): each.name for each in fields(StreamStats)}
_TIMES = [each.name.removeprefix("seconds_") for each in fields(WorkerStats) if each.name.startswith("seconds_")]


def open_counters(num_streams: int, worker_number: Callable[[], int | None]) -> Counters:
    """Begin to count for a dataset of so many streams, in this process and in its workers."""
    by_stream = [f"{stream}.{name}" for stream in range(num_streams) for name in (*_OF_STREAM, "waiting_ns")]
    return Counters(["skipped", *(f"{name}_ns" for name in _TIMES), *by_stream], worker_number)


def make_stats(
    counts: Sequence[Counts],
    num_streams: int,
    *,
    node: Mapping[str, Any] | None = None,
    loop: LoopStats | None = None,
    by_worker: bool = False,
) -> Stats:
    """Add up what was counted."""
    total = {name: sum(of.numbers[name] for of in counts) for name in counts[0].numbers} if counts else {}
    workers = {"main" if of.worker is None else str(of.worker): of.numbers for of in counts} if by_worker else {}
    return Stats(
        **_of_worker(total, num_streams),
        streams=tuple(StreamStats(**_of_stream(total, stream)) for stream in range(num_streams)),
        workers={name: WorkerStats(**_of_worker(numbers, num_streams)) for name, numbers in workers.items()},
        loop=loop,
        uncounted_bytes=(node or {}).get("uncounted_bytes", 0),
        node=NodeStats(**{each.name: node[each.name] for each in fields(NodeStats)}) if node else NodeStats(),
    )


def _of_stream(numbers: Mapping[str, int], stream: int) -> dict[str, int]:
    return {shown: numbers.get(f"{stream}.{name}", 0) for name, shown in _OF_STREAM.items()}


def _of_worker(numbers: Mapping[str, int], num_streams: int) -> dict[str, Any]:
    by_stream = [_of_stream(numbers, stream) for stream in range(num_streams)]
    return {
        **{name: sum(of[name] for of in by_stream) for name in by_stream[0]},
        "skipped": numbers.get("skipped", 0),
        **{f"seconds_{name}": numbers.get(f"{name}_ns", 0) / 1e9 for name in _TIMES},
    }
