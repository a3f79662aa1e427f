"""A loader's worker ends with the process that started it, whatever it waits for."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait

# The parent's end of a pipe shows its death at once, unless other processes hold it too: then its number does.
_LOOK_EVERY_S = 2.0

_watching_in: int | None = None


def end_with_parent() -> None:
    """Watch the parent of this worker in the background, and end when it is gone.

    torch ends a worker that waits for work. One that waits for room in the pipe for its batches would wait for ever:
    its siblings hold the other end, so nothing tells it that nobody reads any more.
    """
    global _watching_in
    parent = multiprocessing.parent_process()
    if parent is None or _watching_in == os.getpid():
        return
    _watching_in = os.getpid()
    sentinel: int = parent.sentinel
    threading.Thread(target=_watch, args=(os.getppid(), sentinel), name="penstock-parent", daemon=True).start()


def _watch(parent: int, sentinel: int) -> None:
    while os.getppid() == parent and not wait([sentinel], timeout=_LOOK_EVERY_S):
        pass
    os._exit(1)
