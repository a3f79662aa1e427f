"""What decoding images takes: the processors of this process, memory within bounds, and memory used again."""

from __future__ import annotations

import io
import multiprocessing
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import ColumnValueError
from penstock.processes import PerProcess, abandon_in_children, num_processors
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager


T = TypeVar("T")
R = TypeVar("R")

_MOST_THREADS = 8
# Threads do not survive a fork.
_pool = PerProcess(partial(ThreadPoolExecutor, _MOST_THREADS, thread_name_prefix="penstock-decode"))
# A small file can hold a very large image. Pillow refuses more as a decompression bomb; arrays are held to the same.
MAX_PIXELS = 2 * (1024**3 // 4 // 3)
_RGB_BYTES = 3
# What one call may give back: eight images of that size, or 1400 of a million pixels.
MAX_DECODED_BYTES = 4 << 30
# What threads may use at the same time while they decode, unless one image alone takes more. Smaller images do not
# queue: eight threads with one of them each stay well below.
MAX_WORKING_BYTES = 1 << 30
_SMALL_BYTES = 32 << 20
_MOST_TRIES = 4  # to find memory that is used no more: the oldest are free first, if any are


def map_in_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results of all items in their order; an error of one is raised when all are done."""
    count = min(len(items), num_threads())
    if count < 2:
        return [function(item) for item in items]
    # Each thread takes every count-th item: a switch between threads costs as much as a small image.
    others = [_pool.get().submit(_map, function, items[first::count]) for first in range(1, count)]
    shares: list[list[R]] = []
    try:
        shares.append(_map(function, items[::count]))
    finally:
        wait(others)  # one of them may fail as well, and the rest still be at work
    shares += [other.result() for other in others]
    results: list[R | None] = [None] * len(items)
    for first, share in enumerate(shares):
        results[first::count] = share
    return results  # type: ignore[return-value]  # all are there


def num_threads() -> int:
    """Count the processors for this process: a worker of a loader has one, ranks of a node share them all."""
    if multiprocessing.parent_process() is not None:
        return 1
    ranks_here = os.environ.get("LOCAL_WORLD_SIZE", "1")
    num_ranks = int(ranks_here) if ranks_here.isdecimal() else 1
    return max(1, min(_MOST_THREADS, num_processors() // max(1, num_ranks)))


def _map(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return [function(item) for item in items]


class WorkingMemory:
    """Lets threads work side by side as long as what they use fits; one alone may always work."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Begin anew: threads that were at work when this process was forked stayed behind with what they use."""
        self._used_bytes = 0
        self._changed = threading.Condition()
        abandon_in_children(self)

    @contextmanager
    def use(self, num_bytes: int) -> Iterator[None]:
        """Wait for room, which those who have it give back when they are done with their image."""
        with self._changed:
            self._changed.wait_for(lambda: not self._used_bytes or self._used_bytes + num_bytes <= self._max_bytes)
            self._used_bytes += num_bytes
        try:
            yield
        finally:
            with self._changed:
                self._used_bytes -= num_bytes
                self._changed.notify_all()


class DecodeBudget:
    """Room for the images of one call, which are all in memory at its end."""

    def __init__(self, max_bytes: int | None = None, working: WorkingMemory | None = None) -> None:
        self._max_bytes = MAX_DECODED_BYTES if max_bytes is None else max_bytes
        self._working = working or _working
        self._taken_bytes = 0
        self._lock = threading.Lock()

    def take(self, width: int, height: int) -> None:
        """Count an image that shall be decoded, or raise if it, or all of them, would be too large."""
        if width * height > MAX_PIXELS:
            raise ColumnValueError(
                f"holds an image of {width} × {height} pixels, which is more than the {MAX_PIXELS} allowed"
            )
        with self._lock:
            self._taken_bytes += width * height * _RGB_BYTES
            is_too_much = self._taken_bytes > self._max_bytes
        if is_too_much:
            raise ColumnValueError(
                f"holds images that together take more than {format_bytes(self._max_bytes)} when decoded: read"
                " fewer samples at a time, or use image_decoder='pil' or 'raw'"
            )

    def working(self, num_bytes: int) -> AbstractContextManager[None]:
        """Decode within the memory that all threads share."""
        return _nothing_to_wait_for if num_bytes <= _SMALL_BYTES else self._working.use(num_bytes)


_working = WorkingMemory(MAX_WORKING_BYTES)
_nothing_to_wait_for = nullcontext()


class BufferPool:
    """Hands out memory, and again once nothing points into it: up to so many bytes of each thread are kept for that.

    Fresh memory is slow: the system has to find and clear every page of it. A decoder that is handed what the images
    before the last have left works in memory that is mapped, and maybe still in the processor's cache.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._of_thread = threading.local()

    def take(self, num_bytes: int) -> memoryview:
        """Return memory to write to. It is the caller's for as long as anything points into it."""
        if num_bytes > self._max_bytes:
            return memoryview(bytearray(num_bytes))
        return self._grown(num_bytes).getbuffer()[:num_bytes]

    def _grown(self, num_bytes: int) -> io.BytesIO:
        """Find memory of at least so many bytes that nothing points into."""
        kept = self._kept()
        for _ in range(min(_MOST_TRIES, len(kept))):  # the oldest, which move to the end
            kept.rotate(-1)
            memory = kept[-1]
            with suppress(BufferError):  # something points into it: Python does not let it be written to before
                memory.write(b"")
                break
        else:
            memory = io.BytesIO()
            kept.append(memory)
        if num_bytes > _num_bytes(memory):
            memory.seek(num_bytes - 1)
            memory.write(b"\0")
            while sum(map(_num_bytes, kept)) > self._max_bytes:
                kept.popleft()  # not the one just grown, which is the last; what points into it keeps it
        return memory

    def _kept(self) -> deque[io.BytesIO]:
        if not hasattr(self._of_thread, "kept"):
            self._of_thread.kept = deque()
        kept: deque[io.BytesIO] = self._of_thread.kept
        return kept


def _num_bytes(memory: io.BytesIO) -> int:
    return memory.getbuffer().nbytes
