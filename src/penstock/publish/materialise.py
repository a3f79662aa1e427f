"""What is computed once: samples that are written to where they stay, task by task.

A source is cut into tasks by arithmetic alone, a target keeps what each of them makes under a name of its own and joins
all of it in the end, and an engine decides who runs which task. What is whole is never made again, and a task that is
run again ends in the same bytes.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from penstock.types import Sample

Done = TypeVar("Done")  # what is known of a task that is done
Done_co = TypeVar("Done_co", covariant=True)


class Samples(Protocol):
    """Samples in order, which can go on where others stood."""

    def take(self, count: int) -> list[Sample]:
        """Return so many of the next samples, or those that are left."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Describe where they stand."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where others stood."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


class Sink(Protocol):
    """Takes samples a block at a time, and knows after which of them another process can go on."""

    @property
    def position(self) -> Any:
        """Where the samples stood that are written; None at the beginning."""
        ...

    @property
    def num_wanted(self) -> int:
        """How many samples to write next, at most."""
        ...

    def write_block(self, rows: Sequence[Sample], position: Callable[[], Any]) -> None:
        """Write samples; `position` tells where the source stands after them."""
        ...


def write_samples(open_samples: Callable[[], Samples], sink: Sink) -> None:
    """Write all samples that are not written yet."""
    with closing(open_samples()) as samples:
        if sink.position is not None:
            samples.load_state_dict(sink.position)
        while rows := samples.take(sink.num_wanted):
            sink.write_block(rows, samples.state_dict)


class Tasks(Protocol):
    """Samples that are cut into tasks. It pickles without a single one of them: who runs a task reads these."""

    @property
    def task_names(self) -> Sequence[str]:
        """Which samples each task makes, in a word each."""
        ...

    @property
    def fingerprint(self) -> str | None:
        """A word that changes with the samples."""
        ...

    def open_task(self, number: int) -> Samples:
        """Open the samples of a task."""
        ...


class TaskTarget(Protocol[Done_co]):
    """Where a dataset is made by tasks. It pickles, so that any process can keep what a task makes."""

    @property
    def shown(self) -> str:
        """What is made, and where."""
        ...

    def find(self, number: int) -> Done_co | None:
        """Return what a task has made that is done already."""
        ...

    def make(self, tasks: Tasks, number: int, *, waits: bool) -> Done_co | None:
        """Run a task, or finish what was begun; None if another process is at it and is not waited for."""
        ...

    def finish(self, num_tasks: int) -> None:
        """Join what all tasks have made, in their order. It does the same whichever process does it."""
        ...


class Engine(Protocol):
    """Has tasks run by a process."""

    def run(self, task: Callable[[int], Done], numbers: Sequence[int], shown: str) -> Generator[tuple[int, Done]]:
        """Call a function, which pickles, for each number; yield each with its result as it is done, in any order."""
        ...


class ThisProcess:
    """Runs one task after the other, here."""

    def run(
        self,
        task: Callable[[int], Done],
        numbers: Sequence[int],
        shown: str,  # noqa: ARG002
    ) -> Generator[tuple[int, Done]]:
        """Run tasks."""
        for number in numbers:
            yield number, task(number)


def materialise(
    tasks: Tasks,
    target: TaskTarget[Done],
    engine: Engine,
    on_done: Callable[[Done], None] = lambda _: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Make what is not made yet, and join it: first all that is free, then what other processes were at."""
    num_tasks, left = len(tasks.task_names), []
    for number in range(num_tasks):
        done = target.find(number)
        if done is None:
            left.append(number)
        else:
            on_done(done)
    for waits in (False, True):
        busy: list[int] = []
        with closing(engine.run(partial(_run, tasks, target, waits), left, target.shown)) as made:
            for number, done in made:
                if done is None:
                    busy.append(number)
                else:
                    on_done(done)
                if is_stopped():
                    return
        left = sorted(busy)
    target.finish(num_tasks)


def _run(tasks: Tasks, target: TaskTarget[Done], waits: bool, number: int) -> Done | None:
    return target.make(tasks, number, waits=waits)
