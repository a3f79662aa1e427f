"""What runs ahead in threads: an iterator, within bounds, or only where that is faster; and batches in their order."""

from __future__ import annotations

import queue
import sys
import threading
import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.threads import WorkerThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from penstock.blocks.block import Block

    # The rows of batches, each with something that belongs to it.
    RowsOfBatches = Iterator[tuple[Block, Any]]

T = TypeVar("T")

_END = object()
_LEAVING_S = 1.0
_QUICK_S = 0.002  # handing work to another thread would take longer, or not much less


class _Failure:
    """An error that the next item is replaced by."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Line(queue.Queue[Any]):
    """A queue that is full with so many items, or with fewer of so many bytes."""

    def __init__(self, max_items: int, max_bytes: int, weigh: Callable[[Any], int]) -> None:
        super().__init__(max_items)
        self._max_bytes, self._weigh = max_bytes, weigh
        self._num_bytes = 0

    def _qsize(self) -> int:
        num_items = len(self.queue)
        return max(num_items, self.maxsize) if num_items and self._num_bytes >= self._max_bytes else num_items

    def _put(self, item: Any) -> None:
        self._num_bytes += self._weigh_item(item)
        super()._put(item)

    def _get(self) -> Any:
        item = super()._get()
        self._num_bytes -= self._weigh_item(item)
        return item

    def _weigh_item(self, item: Any) -> int:
        return 0 if item is _END or isinstance(item, _Failure) else self._weigh(item)


def in_thread(
    source: Callable[[], Iterator[T]],
    *,
    ahead: int,
    max_bytes: int = sys.maxsize,
    weigh: Callable[[T], int] = lambda _: 0,
    on_abandon: Callable[[], None] = lambda: None,
) -> Iterator[T]:
    """Yield the items of a source, while a thread reads up to `ahead` items further, or fewer of `max_bytes` in all.

    An error of the source is raised where its item would have been. Closing the iterator or
    losing it ends the thread. One that waits for a store which is away is not waited for: `on_abandon` hears of it,
    and what it uses is its own until it is done.
    """
    stopped = threading.Event()
    line = _Line(ahead, max_bytes, weigh)
    thread = threading.Thread(target=_read, args=(source, line, stopped), name="penstock-reader", daemon=True)
    thread.start()
    try:
        while True:
            item = line.get()
            if item is _END:
                return
            if isinstance(item, _Failure):
                raise item.error
            yield item
    finally:
        stopped.set()
        if not _end(line, thread):
            on_abandon()


def _end(line: _Line, thread: threading.Thread) -> bool:
    """Wait a moment for the end of a thread that was told to stop, and tell whether it came to it."""
    deadline = time.monotonic() + _LEAVING_S
    _make_room(line)  # for the one item that it may put before it looks whether it is to stop
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(timeout=0.01)
        _make_room(line)
    return not thread.is_alive()


def _make_room(line: _Line) -> None:
    with suppress(queue.Empty):
        while True:
            line.get_nowait()


def _read(source: Callable[[], Iterator[T]], line: _Line, stopped: threading.Event) -> None:
    try:
        for item in source():
            if stopped.is_set():
                return
            line.put(item)
        line.put(_END)
    except BaseException as error:  # noqa: BLE001  raised again where the item is waited for
        line.put(_Failure(error))


class Passes(Protocol):
    """Passes over samples, one after the other."""

    def begin(self) -> tuple[Any, Callable[[WorkerThreads | None], RowsOfBatches]]:
        """Begin the next pass; return it, and what opens the rows of its batches, each with a position."""

    def deliver(self, begun: Any, position: Any, /) -> None:
        """Count a batch of a pass as delivered."""

    def finish(self, begun: Any, /, *, is_empty: bool) -> bool:
        """End a pass; return False if it had nothing left and another one is to be read instead."""


def batches_of(passes: Passes, make: Callable[[Block], Any], *, num_threads: int, num_ahead: int) -> Generator[Any]:
    """Yield the batches of the next pass, each counted as it is taken."""
    is_over = False
    while not is_over:
        begun, open_rows = passes.begin()
        is_empty = True
        made = make_batches(open_rows, make, num_threads=num_threads, num_ahead=num_ahead)
        try:
            for batch, position in made:
                passes.deliver(begun, position)
                is_empty = False
                yield batch
        finally:
            made.close()
        is_over = passes.finish(begun, is_empty=is_empty)


def make_batches(
    open_rows: Callable[[WorkerThreads | None], RowsOfBatches],
    make: Callable[[Block], Any],
    *,
    num_threads: int,
    num_ahead: int,
) -> Generator[tuple[Any, Any]]:
    """Make a batch of some rows at a time, before they are taken; with 0 threads, when they are taken.

    Closing the iterator or losing it ends the threads.
    """
    if num_threads == 0:
        rows = open_rows(None)
        try:
            for some, label in rows:
                yield make(some), label
        finally:
            _close(rows)
        return
    workers = WorkerThreads(num_threads, "penstock-prefetch")
    timed = _Timed(make)

    def make_all() -> Iterator[tuple[Any, Any]]:
        rows = open_rows(workers)
        try:
            for some, label in rows:
                yield workers.submit(timed, some) if timed.seconds > _QUICK_S else _Made(timed(some)), label
        finally:
            _close(rows)

    ahead = in_thread(make_all, ahead=num_ahead)
    try:
        for made, label in ahead:
            yield made.result(), label
    finally:
        workers.shutdown()
        _close(ahead)


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


class _Timed:
    """A function that makes batches, and how long it took the last time."""

    def __init__(self, make: Callable[[Block], Any]) -> None:
        self._make, self.seconds = make, 0.0

    def __call__(self, rows: Block) -> Any:
        begin = time.perf_counter()
        batch = self._make(rows)
        self.seconds = time.perf_counter() - begin
        return batch


class _Made:
    """A batch that is there already, where others are awaited."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def result(self) -> Any:
        return self._batch


# What is measured at a time: blocks of several batches are read at once, so one batch says nothing.
_MEASURED_S = 0.2
_MEASURED_ITEMS = 8
# A loop that takes less of the time for itself has nothing to win by a thread.
_LEAST_SHARE = 0.1
_GAIN = 0.98
# How many measures pass until a thread that did not pay is tried again, at first and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 4, 64
# A thread that pays reads so many times what was measured, and so often, before the loop is measured without it again.
_STRETCH, _NUM_STRETCHES = 16, 8


def prefetch_adaptively(
    source: Callable[[], Iterator[T]],
    *,
    ahead: int,
    max_bytes: int = sys.maxsize,
    weigh: Callable[[T], int] = lambda _: 0,
    on_abandon: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[T]:
    """Yield the items of a source, read where they are taken, or by a thread (`in_thread`) where that is faster."""
    items = source()

    def by_thread(most: int) -> Iterator[T]:
        return in_thread(
            lambda: islice(items, most), ahead=ahead, max_bytes=max_bytes, weigh=weigh, on_abandon=on_abandon
        )

    pause, wait = _FIRST_PAUSE, 0
    while True:
        alone = _Measured(clock)
        for item in items:
            alone.hand_over()
            yield item
            alone.come_back()
            if alone.is_enough:
                break
        else:
            return
        wait -= 1
        if alone.share_of_loop < _LEAST_SHARE or wait > 0:
            continue
        for stretch in range(1 + _NUM_STRETCHES):
            most = alone.num_items * (_STRETCH if stretch else 1)
            together = _Measured(clock)
            for item in by_thread(most):
                together.hand_over()
                yield item
                together.come_back()
            if together.num_items < most:
                return
            if together.seconds_per_item > _GAIN * alone.seconds_per_item:
                pause, wait = min(2 * pause, _LONGEST_PAUSE), pause
                break
            pause = _FIRST_PAUSE


class _Measured:
    """How long items take, and how much of that is the loop's that takes them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = self._left = self._now = clock()
        self._away_s = 0.0
        self.num_items = 0

    def hand_over(self) -> None:
        self._left = self._clock()

    def come_back(self) -> None:
        self._now = self._clock()
        self._away_s += self._now - self._left
        self.num_items += 1

    @property
    def is_enough(self) -> bool:
        return self.num_items >= _MEASURED_ITEMS and self._now - self._begun >= _MEASURED_S

    @property
    def seconds_per_item(self) -> float:
        return (self._now - self._begun) / max(1, self.num_items)

    @property
    def share_of_loop(self) -> float:
        return self._away_s / max(1e-9, self._now - self._begun)
