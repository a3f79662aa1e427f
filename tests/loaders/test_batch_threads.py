"""Batches made ahead: in order, whole, with their errors, and without threads that stay."""

from __future__ import annotations

import gc
import threading
import time
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import pytest

from penstock.loaders.threads import make_batches

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator


def double(row: Any) -> Any:
    return row * 2


def doubled(rows: Iterable[Any], num_threads: int, num_ahead: int = 4) -> Generator[tuple[Any, Any]]:
    labelled = ((row, f"row {row}") for row in rows)
    return make_batches(lambda _: labelled, double, num_threads=num_threads, num_ahead=num_ahead)


def slowly_doubled(row: Any) -> Any:
    time.sleep(0.05)
    return 2 * row


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-prefetch")]


def wait_for_no_threads() -> None:
    deadline = time.monotonic() + 10
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not threads()


def test_batches_come_in_order_and_ahead() -> None:
    taken: list[int] = []

    def rows() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    batches = doubled(rows(), num_threads=3)
    assert next(batches) == (0, "row 0")
    deadline = time.monotonic() + 10
    while len(taken) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 5 <= len(taken) <= 8  # what is ready, and what is under way
    assert list(batches) == [(2 * number, f"row {number}") for number in range(1, 100)]
    wait_for_no_threads()


@pytest.mark.parametrize("num_threads", [0, 2])
def test_errors_come_in_their_place(num_threads: int) -> None:
    def rows() -> Iterator[int]:
        yield from range(3)
        raise ZeroDivisionError

    batches = doubled(rows(), num_threads)
    assert [batch for batch, _ in islice(batches, 3)] == [0, 2, 4]
    with pytest.raises(ZeroDivisionError):
        next(batches)


@pytest.mark.parametrize("how", ["close", "drop"])
def test_threads_end(how: str) -> None:
    labelled: Any = ((row, "") for row in count())
    batches = make_batches(lambda _: labelled, slowly_doubled, num_threads=2, num_ahead=2)
    assert [next(batches)[0] for _ in range(3)] == [0, 2, 4]
    assert threads()  # which quick batches do without
    if how == "close":
        batches.close()
    del batches
    gc.collect()
    wait_for_no_threads()
