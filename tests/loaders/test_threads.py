"""An iterator that runs ahead in a thread: the same items, errors in their places, and no more ahead than allowed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from penstock.loaders.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "penstock-reader"]


def numbers(count: int, after: Callable[[int], None] = lambda _: None) -> Iterator[int]:
    for number in range(count):
        after(number)
        yield number


def test_items_come_in_order_and_an_error_in_its_place() -> None:
    def fail_at_5(number: int) -> None:
        if number == 5:
            raise KeyError(number)

    assert list(in_thread(lambda: numbers(9), ahead=2, max_bytes=100, weigh=lambda _: 1)) == list(range(9))
    items = in_thread(lambda: numbers(9, fail_at_5), ahead=3, max_bytes=100, weigh=lambda _: 1)
    assert [next(items) for _ in range(5)] == list(range(5))
    with pytest.raises(KeyError):
        next(items)
    assert reading_threads() == []


@pytest.mark.parametrize(("ahead", "max_bytes", "most"), [(3, 1000, 3), (8, 20, 2), (8, 1, 1)])
def test_it_holds_so_many_items_or_bytes_and_no_more(ahead: int, max_bytes: int, most: int) -> None:
    # One more is made than fits, and waits for its place. A further one would break the bound.
    one_too_many = threading.Event()

    def count(number: int) -> None:
        if number > 1 + most:  # the first is taken at once
            one_too_many.set()

    items = in_thread(lambda: numbers(50, count), ahead=ahead, max_bytes=max_bytes, weigh=lambda _: 10)
    assert next(items) == 0
    assert not one_too_many.wait(timeout=0.2)
    assert next(items) == 1
    assert one_too_many.wait(timeout=30)
    assert list(items) == list(range(2, 50))


def test_a_consumer_that_stops_ends_the_thread() -> None:
    items = in_thread(lambda: numbers(10**9), ahead=2, max_bytes=100, weigh=lambda _: 1)
    assert next(items) == 0
    assert len(reading_threads()) == 1
    items.close()  # type: ignore[attr-defined]
    assert reading_threads() == []
