"""A thread reads ahead where that is faster, and the loop reads by itself where it is not; items are the same."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from penstock.loaders.threads import prefetch_adaptively

if TYPE_CHECKING:
    from collections.abc import Iterator


class Simulated:
    """A source, a loop and a clock: an item takes so long to read, or so long in a thread, and the loop takes its time.

    What a thread does beside the loop takes no time of the clock, which is the loop's.
    """

    def __init__(self, count: int, *, read_s: float, thread_s: float, loop_s: float) -> None:
        self.count, self.read_s, self.thread_s, self.loop_s = count, read_s, thread_s, loop_s
        self.now = 0.0
        self.by_thread = 0

    def clock(self) -> float:
        return self.now

    def source(self) -> Iterator[int]:
        for number in range(self.count):
            is_ahead = threading.current_thread() is not threading.main_thread()
            self.by_thread += is_ahead
            self.now += self.thread_s if is_ahead else self.read_s
            yield number

    def run(self) -> list[int]:
        taken = []
        for number in prefetch_adaptively(self.source, ahead=4, clock=self.clock):
            self.now += self.loop_s
            taken.append(number)
        return taken


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "penstock-reader"]


def test_a_loop_that_only_takes_reads_by_itself() -> None:
    simulated = Simulated(2000, read_s=0.01, thread_s=0.02, loop_s=0.0001)
    assert simulated.run() == list(range(2000))
    assert simulated.by_thread == 0


def test_a_loop_that_computes_elsewhere_has_a_thread() -> None:
    simulated = Simulated(2000, read_s=0.01, thread_s=0.0, loop_s=0.01)
    assert simulated.run() == list(range(2000))
    assert simulated.by_thread > 1500


def test_a_thread_that_does_not_pay_is_seldom_tried_again() -> None:
    simulated = Simulated(20_000, read_s=0.01, thread_s=0.02, loop_s=0.01)
    assert simulated.run() == list(range(20_000))
    assert 0 < simulated.by_thread < 1500


@pytest.mark.parametrize("count", [0, 1, 8, 19, 20, 21, 40, 41, 700])
@pytest.mark.parametrize("thread_s", [0.0, 0.02])
def test_all_items_come_in_order_whichever_thread_reads_them(count: int, thread_s: float) -> None:
    assert Simulated(count, read_s=0.01, thread_s=thread_s, loop_s=0.01).run() == list(range(count))
    assert not reading_threads()


@pytest.mark.parametrize("good", [3, 15])
def test_an_error_comes_in_its_place_and_leaves_no_thread(good: int) -> None:
    simulated = Simulated(good, read_s=0.05, thread_s=0.0, loop_s=0.05)

    def broken() -> Iterator[int]:
        yield from simulated.source()
        raise KeyError("no more")

    taken = []
    with pytest.raises(KeyError):
        for number in prefetch_adaptively(broken, ahead=3, clock=simulated.clock):
            simulated.now += simulated.loop_s
            taken.append(number)
    assert taken == list(range(good))
    assert not reading_threads()


def test_a_consumer_that_stops_ends_the_thread() -> None:
    simulated = Simulated(10**6, read_s=0.05, thread_s=0.0, loop_s=0.05)
    items = prefetch_adaptively(simulated.source, ahead=3, clock=simulated.clock)
    for _ in range(12):
        next(items)
        simulated.now += simulated.loop_s
    assert len(reading_threads()) == 1
    items.close()  # type: ignore[attr-defined]
    assert not reading_threads()
