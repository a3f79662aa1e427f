"""Nothing that is alive crosses a fork: threads, locks, connections and open files are each process's own.

A forked child finds copies of its parent's locks, maybe held by threads that it does not have, and descriptors that it
shares with its parent. Whatever would suffer from that is either given up in the child (`abandon_in_children`) or made
anew there on first use (`PerProcess`). This file is the only one that hears of forks.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# The parent's end of a pipe shows its death at once, unless other processes hold it too: then its number does.
_LOOK_EVERY_S = 2.0


class Inherited(Protocol):
    """Something that must not go on living in a forked child."""

    def after_fork_in_child(self) -> None:
        """Let go in the child without telling any other process, and without unlocking: the parent still holds it."""


class Shared(Protocol):
    """Something that a process shares with its children."""

    def claim(self) -> None:
        """Make sure that it is this process's own to share, before a child is forked."""


_alive: weakref.WeakSet[Inherited] = weakref.WeakSet()
_shared: weakref.WeakSet[Shared] = weakref.WeakSet()
abandon_in_children = _alive.add  # in every child that this process forks; what lives on there asks for it again
claim_before_forks = _shared.add  # before this process forks a child, for as long as it is alive


def _claim_all() -> None:
    for resource in list(_shared):
        resource.claim()


def _abandon_all() -> None:
    inherited = list(_alive)
    _alive.clear()
    for resource in inherited:
        with suppress(OSError):  # the others must be let go of even if one is broken
            resource.after_fork_in_child()


os.register_at_fork(before=_claim_all, after_in_child=_abandon_all)


def num_processors() -> int:
    """Count the processors that this process may use."""
    # macOS cannot tell which, only how many there are.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PerProcess(Generic[T]):
    """A value that each process makes for itself when it first asks for it. Safe for threads.

    What the parent made is not closed in its child, only forgotten: whatever in it needs more than that asks for it
    with `abandon_in_children`. A pickle carries how to make the value, never the value. `make` must not lead back to
    what owns this: the two would keep each other alive until the garbage collector comes by.
    """

    _value: T | None

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self.after_fork_in_child()

    def get(self) -> T:
        """Return this process's own."""
        value = self._value
        if value is None:
            with self._lock:
                value = self._value
                if value is None:
                    value = self._value = self._make()
        return value

    @property
    def made(self) -> T | None:
        """What this process has made, if it has made it yet."""
        return self._value

    def forget(self) -> T | None:
        """Return what was made, to be closed; the next who asks gets another."""
        with self._lock:
            value, self._value = self._value, None
            return value

    def after_fork_in_child(self) -> None:
        """Begin with nothing, as a new process does."""
        self._lock = threading.RLock()
        self._value = None
        abandon_in_children(self)

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._make = state["_make"]
        self.after_fork_in_child()


# --- Children that end with their parent --------------------------------------------------------------------------


def end_with_parent() -> None:
    """Watch the parent of this worker in the background, and end when it is gone.

    torch ends a worker that waits for work. One that waits for room in the pipe for its batches would wait for ever:
    its siblings hold the other end, so nothing tells it that its reader is gone.
    """
    _watching.get()


def _start_watching() -> threading.Thread | None:
    import multiprocessing  # which only workers need

    parent = multiprocessing.parent_process()
    if parent is None:
        return None
    thread = threading.Thread(target=_watch, args=(os.getppid(), parent.sentinel), name="penstock-parent", daemon=True)
    thread.start()
    return thread


_watching = PerProcess(_start_watching)


def _watch(parent: int, sentinel: int) -> None:
    from multiprocessing.connection import wait

    while os.getppid() == parent and not wait([sentinel], timeout=_LOOK_EVERY_S):
        pass
    os._exit(1)
