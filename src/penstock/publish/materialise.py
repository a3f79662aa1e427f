"""What is computed once: samples that are written to where they stay, part by part.

A task knows its parts, and an engine decides who makes which of them. What is whole is never made again.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from penstock.types import Sample

Done = TypeVar("Done")  # what is known of a part that is whole
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


class Task(Protocol[Done_co]):
    """A dataset of so many parts. It pickles without its samples: processes read these themselves."""

    @property
    def shown(self) -> str:
        """What is made, and where."""
        ...

    @property
    def num_parts(self) -> int:
        """How many parts there are."""
        ...

    def find_part(self, number: int) -> Done_co | None:
        """Return a part that is whole already."""
        ...

    def make_part(self, number: int, *, waits: bool) -> Done_co | None:
        """Make a part, or finish one that was begun; None if another process is at it and is not waited for."""
        ...

    def finish(self) -> None:
        """Join all parts, once they are whole. It does the same whichever process does it."""
        ...


class Engine(Protocol):
    """Has parts made by a process. It gives each as it is done, in any order, or None if another process is at it."""

    def make(self, task: Task[Done], numbers: Sequence[int], *, waits: bool) -> Generator[tuple[int, Done | None]]:
        """Have parts made; with `waits`, those that other processes are making are waited for."""
        ...


class ThisProcess:
    """Makes one part after the other, here."""

    def make(self, task: Task[Done], numbers: Sequence[int], *, waits: bool) -> Generator[tuple[int, Done | None]]:
        """Make parts."""
        for number in numbers:
            yield number, task.make_part(number, waits=waits)


def materialise(
    task: Task[Done],
    engine: Engine,
    on_part: Callable[[Done], None] = lambda _: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Make what is not made yet, and join it: first all that is free, then what other processes were at."""
    left: list[int] = []
    for number in range(task.num_parts):
        done = task.find_part(number)
        if done is None:
            left.append(number)
        else:
            on_part(done)
    for waits in (False, True):
        busy: list[int] = []
        with closing(engine.make(task, left, waits=waits)) as made:
            for number, done in made:
                if done is None:
                    busy.append(number)
                else:
                    on_part(done)
                if is_stopped():
                    return
        left = sorted(busy)
    task.finish()
