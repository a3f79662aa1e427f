"""Work that lets go of the interpreter's lock, such as decoding images, on all processors of this process."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.processes import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
R = TypeVar("R")

_MOST_THREADS = 8

# Threads do not survive a fork.
_pool = PerProcess(partial(ThreadPoolExecutor, _MOST_THREADS, thread_name_prefix="penstock-decode"))


def map_in_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Give the results of all items in their order; an error of one is raised when all are done."""
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
    # macOS cannot tell which processors a process may use, only how many there are.
    num_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST_THREADS, num_processors // max(1, num_ranks)))


def _map(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return [function(item) for item in items]
