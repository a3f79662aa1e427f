"""A file without a name, which a process shares with the workers that it starts: forked, spawned or by a fork server.

Workers die after each pass unless they are persistent, and any of them may be killed. Such a file is inherited, costs
nothing to share, and vanishes with the last process that holds it.
"""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import suppress
from multiprocessing import context, reduction
from typing import TYPE_CHECKING, Any

from penstock.errors import FetcherError
from penstock.processes import abandon_in_children, claim_before_forks
from penstock.runtime import make_runtime_folder

if TYPE_CHECKING:
    from collections.abc import Callable

_NONE = -1


class SharedFile:
    """The file of one process and its workers. A process that is no worker, such as a rank, has one of its own.

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

    def __del__(self) -> None:
        if getattr(self, "_descriptor", _NONE) != _NONE:
            os.close(self._descriptor)


def _open_nameless() -> int:
    folder = None
    with suppress(FetcherError):  # what needs the folder for more than this says what is wrong with it
        folder = make_runtime_folder()
    with tempfile.TemporaryFile(prefix="penstock-", dir=folder) as file:
        return os.dup(file.fileno())
