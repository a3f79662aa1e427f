"""Which epoch comes next: a notebook that a dataset shares with the workers of its loaders.

Workers are other processes, forked or spawned, and die after each pass unless they are persistent. So what they and
their parent have to agree on lies in a file without a name: it is inherited, costs nothing to share, and vanishes with
the last process that holds it.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import context, reduction
from typing import TYPE_CHECKING, Any

from penstock.data.seat import is_worker
from penstock.errors import ResumeError
from penstock.order.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NO_WORKER = -1  # a process that iterates by itself
# Only the newest pass is ever joined by somebody who comes late; a few more serve loaders that take turns.
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
class Notes:
    """What is in the book: the epoch that comes next, the state that was loaded last, the newest passes."""

    next_epoch: int = 0
    state: dict[str, Any] | None = None
    is_state_new: bool = False  # no pass has begun at it yet
    is_epoch_new: bool = False  # it was set, to another one than that under way, and no pass has begun since
    num_passes: int = 0

    @property
    def is_between_passes(self) -> bool:
        """Whether the next pass is what counts, not the one before: a state was loaded, an epoch set, or none begun."""
        return not self.passes or self.is_state_new or self.is_epoch_new

    passes: list[Pass] = field(default_factory=list)


class _Nested:
    """A lock that its thread may take again: whoever begins a pass looks into the book while doing so."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.depth = 0


class PassBook:
    """The notebook. Any process may read and write it; each change is one step that nobody sees half done."""

    def __init__(self) -> None:
        # Held open for as long as the dataset lives, and without a name from the start.
        with tempfile.TemporaryFile(prefix="penstock-") as file:
            self._descriptor = os.dup(file.fileno())
        self._owner = os.getpid()
        self._locks: dict[int, _Nested] = {}

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def read(self) -> Notes:
        """Give what is noted now."""
        with self._locked():
            return self._load()

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the next one. A state that waits to be resumed in just this epoch stays."""
        if epoch < 0:
            raise ResumeError(f"epoch {epoch} is no epoch: they count from 0")
        with self._changed() as notes:
            notes.next_epoch = epoch
            notes.is_epoch_new = not notes.passes or notes.passes[-1].epoch != epoch
            if notes.is_state_new and notes.state is not None and int(notes.state["epoch"]) != epoch:
                notes.is_state_new = False

    def load(self, state: dict[str, Any]) -> None:
        """Note a state to go on from: the next pass begins there."""
        with self._changed() as notes:
            notes.state, notes.is_state_new = state, True

    def announce(self, num_workers: int, start_of: Callable[[Notes], Cursor]) -> Pass:
        """Begin a pass that so many workers will join, or with none of them the process itself."""
        with self._changed() as notes:
            begun = self._begin(notes, start_of(notes))
            begun.expected = list(range(num_workers)) or [NO_WORKER]
            return begun

    def join(
        self, worker: int, key: str | None, start_of: Callable[[Notes], Cursor], number: int | None = None
    ) -> Pass:
        """Take part in the pass that this worker is meant for, beginning it if nobody has yet.

        `number` is that of an announced pass, where the worker was started for it. `key` names the pass for the workers
        of a loader that announces nothing; a worker that took part already is here for the next one, whatever the key.
        Each call of `NO_WORKER` begins a pass, unless one was announced.
        """
        with self._changed() as notes:
            begun = _find_pass(notes.passes, worker, key, number) or self._begin(notes, start_of(notes), key)
            begun.workers.append(worker)
            return begun

    def _begin(self, notes: Notes, at: Cursor, key: str | None = None) -> Pass:
        begun = Pass(number=notes.num_passes, epoch=at.epoch, position=at.position, key=key)
        notes.num_passes += 1
        for earlier in notes.passes:
            earlier.expected = []  # who has not come by now never will
        notes.passes = [*notes.passes[1 - _PASSES_KEPT :], begun]
        notes.next_epoch = at.epoch + 1
        notes.is_state_new = notes.is_epoch_new = False
        return begun

    @contextmanager
    def _changed(self) -> Iterator[Notes]:
        with self._locked():
            notes = self._load()
            yield notes
            self._write(notes)

    def _write(self, notes: Notes) -> None:
        # In one piece, blanks over what was longer before: whoever is killed here leaves the old or the new.
        data = json.dumps(asdict(notes)).encode()
        os.pwrite(self._descriptor, data.ljust(os.fstat(self._descriptor).st_size), 0)

    def _keep_apart(self) -> None:
        """Give a process that is nobody's worker, such as a rank that was started with this dataset, its own book."""
        if self._owner != os.getpid() and not is_worker():
            shared, notes = self._descriptor, self._load()
            PassBook.__init__(self)
            os.close(shared)
            self._write(notes)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._keep_apart()
        # A lock of the process, not of the open file, which forked workers share with their parent; and since it
        # does not keep threads apart, one for these.
        here = self._locks.get(os.getpid())
        if here is None:  # one that came over a fork may be held by a thread that did not
            here = self._locks.setdefault(os.getpid(), _Nested())
        with here.lock:
            here.depth += 1
            if here.depth == 1:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                here.depth -= 1
                if here.depth == 0:
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _load(self) -> Notes:
        data = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        if not data:
            return Notes()
        fields = json.loads(data)
        return Notes(**{**fields, "passes": [Pass(**begun) for begun in fields["passes"]]})

    def __getstate__(self) -> dict[str, Any]:
        """Share the file with a worker that is being spawned; any other copy gets a book of its own."""
        if context.get_spawning_popen() is not None:
            return {"shared": reduction.DupFd(self._descriptor)}
        return {"notes": asdict(self.read())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "shared" in state:
            self._descriptor = state["shared"].detach()
            self._owner = 0  # another process
            self._locks = {}
            return
        PassBook.__init__(self)
        os.pwrite(self._descriptor, json.dumps(state["notes"]).encode(), 0)


def _find_pass(passes: list[Pass], worker: int, key: str | None, number: int | None) -> Pass | None:
    """Find the newest pass that waits for a worker, or the one that the worker was started for."""
    for begun in reversed(passes):
        if number is not None:
            is_meant = begun.number == number
        else:
            is_meant = worker in begun.expected or (key is not None and begun.key == key)
        if is_meant and worker not in begun.workers:
            return begun
    return None
