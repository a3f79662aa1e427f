"""Which epoch comes next, and which passes have begun: what a dataset shares with the workers of its loaders.

Workers are other processes. What they and their parent have to agree on lies in a file that they share.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.counters import SharedFile
from penstock.data.ranks import is_worker
from penstock.errors import ResumeError
from penstock.files import os_errors
from penstock.order.cursor import Cursor
from penstock.processes import PerProcess
from penstock.runtime import runtime_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NO_WORKER = -1  # a process that iterates by itself
# Only the newest pass is ever joined by a worker that comes late; a few more serve loaders that take turns.
_PASSES_KEPT = 8


@dataclass(kw_only=True)
class Pass:
    """One pass over the dataset: where it began, and which workers take part so far."""

    number: int
    epoch: int
    position: int
    key: str | None = None  # what names it for the workers of a loader that announced nothing
    expected: list[int] = field(default_factory=list)  # announced for these, each of them once
    workers: list[int] = field(default_factory=list)

    @property
    def at(self) -> Cursor:
        """Where the pass began."""
        return Cursor(self.epoch, self.position)


@dataclass(kw_only=True)
class PassState:
    """What is shared: the epoch that comes next, the state that was loaded last, the newest passes."""

    next_epoch: int = 0
    state: dict[str, Any] | None = None
    is_state_new: bool = False  # no pass has begun at it yet
    is_epoch_new: bool = False  # it was set, to another one than that under way, and no pass has begun since
    num_passes: int = 0
    passes: list[Pass] = field(default_factory=list)

    @property
    def is_between_passes(self) -> bool:
        """Whether the next pass is what counts, not the one before: a state was loaded, an epoch set, or none begun."""
        return not self.passes or self.is_state_new or self.is_epoch_new

    def begin(self, at: Cursor, *, key: str | None = None, expected: Sequence[int] = ()) -> Pass:
        """Begin a pass, which those workers will join that are expected."""
        begun = Pass(number=self.num_passes, epoch=at.epoch, position=at.position, key=key, expected=list(expected))
        self.num_passes += 1
        for earlier in self.passes:
            earlier.expected = []  # a worker that has not come by now never will
        self.passes = [*self.passes[1 - _PASSES_KEPT :], begun]
        self.next_epoch = at.epoch + 1
        self.is_state_new = self.is_epoch_new = False
        return begun

    def find(self, worker: int, key: str | None, number: int | None) -> Pass | None:
        """Find the newest pass that waits for a worker, or the one that the worker was started for.

        `number` is that of an announced pass, where the worker was started for it. `key` names the pass for the workers
        of a loader that announces nothing; a worker that took part already is here for the next one, whatever the key.
        """
        for begun in reversed(self.passes):
            if number is not None:
                is_meant = begun.number == number
            else:
                is_meant = worker in begun.expected or (key is not None and begun.key == key)
            if is_meant and worker not in begun.workers:
                return begun
        return None


class _ProcessLock:
    """Keeps the threads of one process apart, which a lock on a file does not."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.depth = 0  # a signal handler may come while it is held, and take a state


class SharedPasses:
    """A shared file. Any process may read and write it; each change is one step, of which no other sees a half."""

    def __init__(self) -> None:
        self._file = SharedFile(is_worker, is_copied=True)
        self._in_process = PerProcess(_ProcessLock)

    def read(self) -> PassState:
        """Return what is shared now."""
        with self._locked():
            return self._load()

    @contextmanager
    def changed(self) -> Iterator[PassState]:
        """Yield what is shared, and write down what became of it."""
        with self._locked():
            now = self._load()
            yield now
            # In one piece, blanks over what was longer before: a process killed here leaves the old or the new.
            data, descriptor = json.dumps(asdict(now)).encode(), self._file.descriptor
            os.pwrite(descriptor, data.ljust(os.fstat(descriptor).st_size), 0)

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the next one. A state that waits to be resumed in just this epoch stays."""
        if epoch < 0:
            raise ResumeError(f"epoch {epoch} does not exist: epochs count from 0")
        with self.changed() as now:
            now.next_epoch = epoch
            now.is_epoch_new = not now.passes or now.passes[-1].epoch != epoch
            if now.is_state_new and now.state is not None and int(now.state["epoch"]) != epoch:
                now.is_state_new = False

    def load(self, state: dict[str, Any]) -> None:
        """Note a state to go on from: the next pass begins there."""
        with self.changed() as now:
            now.state, now.is_state_new = state, True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        here = self._in_process.get()
        with here.lock, os_errors(runtime_folder()):
            descriptor = self._file.descriptor
            here.depth += 1
            # Of the process, not of the open file, which forked workers share with their parent.
            if here.depth == 1:
                fcntl.lockf(descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                here.depth -= 1
                if here.depth == 0:
                    fcntl.lockf(descriptor, fcntl.LOCK_UN)

    def _load(self) -> PassState:
        data = self._file.read()
        if not data:
            return PassState()
        fields = json.loads(data)
        return PassState(**{**fields, "passes": [Pass(**begun) for begun in fields["passes"]]})

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self._file, "passes": asdict(self.read())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._file = state["file"]
        self._in_process = PerProcess(_ProcessLock)
        if self._file.is_new:
            os.pwrite(self._file.descriptor, json.dumps(state["passes"]).encode(), 0)
