"""A loader's worker ends with the process that started it, whatever it waits for."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait

from penstock.processes import PerProcess

# The parent's end of a pipe shows its death at once, unless other processes hold it too: then its number does.
_LOOK_EVERY_S = 2.0


def end_with_parent() -> None:
    """Watch the parent of this worker in the background, and end when it is gone.

    torch ends a worker that waits for work. One that waits for room in the pipe for its batches would wait for ever:
    its siblings hold the other end, so nothing tells it that nobody reads any more.
    """
    _watching.get()


def _start_watching() -> threading.Thread | None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return None
    thread = threading.Thread(target=_watch, args=(os.getppid(), parent.sentinel), name="penstock-parent", daemon=True)
    thread.start()
    return thread


_watching = PerProcess(_start_watching)


def _watch(parent: int, sentinel: int) -> None:
    while os.getppid() == parent and not wait([sentinel], timeout=_LOOK_EVERY_S):
        pass
    os._exit(1)
