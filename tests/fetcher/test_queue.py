"""Who is next, who is served, who waits: the queue as a table of cases, each told in plain values."""

from __future__ import annotations

import math
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cachedir.items import item_of_object
from penstock.fetcher.queue import (
    DISK_PATIENCE_S,
    FAILED_FOR_S,
    MOST_DIRECTORIES,
    MOST_URGENT_WORKERS,
    MOST_WORKERS,
    ItemQueue,
    QueuedItem,
    Request,
    State,
)
from penstock.storage.base import StoreSettings
from penstock.wire.settings import CachedStream

if TYPE_CHECKING:
    from penstock.wire.item import Item

ME, OTHER = (1, 1), (2, 1)


class Wishes:
    """A queue, and who wants what of it: `a/x` is the item x of the directory /a."""

    def __init__(self) -> None:
        self.queue = ItemQueue()
        self.now = 0.0
        self.requests: dict[str, Request] = {}

    def ask(self, what: str, *, is_urgent: bool = True, timeout_s: float = 10.0, group: tuple[int, int] = ME) -> None:
        self.now += 1
        directory, item, stream = described(what)
        key = str(directory), item.identity
        self.requests[what] = Request(group, 0, is_urgent, timeout_s, key, self.now, Future())
        self.queue.ask(self.requests[what], directory, item, stream)

    def expect(self, what: str, ahead: int, group: tuple[int, int] = ME) -> None:
        _, item, stream = described(what)
        self.queue.expect((group, 0), ahead, item, stream, self.now)

    def take(self, num_busy: int = 0) -> str | None:
        queued = self.queue.take(num_busy)
        return None if queued is None else name_of(queued)

    def item(self, what: str) -> QueuedItem:
        directory, item, _ = described(what)
        return self.queue.items[str(directory), item.identity]

    def admit(self, what: str, *, has_room: bool = True) -> None:
        self.queue.end_admission(self.item(what), has_room=has_room)

    def refuse(self, what: str) -> None:
        """Have an item find no room."""
        assert self.take() == what
        self.admit(what, has_room=False)
        self.queue.wait_for_space(self.item(what), self.now)

    def serve(self) -> list[str]:
        """Take and finish items until none is left that may begin."""
        served = []
        while (what := self.take()) is not None:
            served.append(what)
            self.finish(what)
        return served

    def finish(self, what: str, *, has_failed: bool = False) -> None:
        self.admit(what)
        self.queue.finish(self.item(what), self.now, has_failed=has_failed)


def described(what: str) -> tuple[Path, Item, CachedStream]:
    directory, _, name = what.partition("/")
    stream = CachedStream(directory=Path("/", directory), store=StoreSettings("/s"))
    return stream.directory, item_of_object(name, name, 1), stream


def name_of(queued: QueuedItem) -> str:
    return f"{queued.directory.name}/{queued.item.name}"


@pytest.fixture
def wishes() -> Wishes:
    return Wishes()


# --- Who is next ------------------------------------------------------------------------------------------------

ORDERS = {
    "those who wait come in the order of asking": (["ask a/1", "ask a/2", "ask b/3"], ["a/1", "a/2", "b/3"]),
    "those who wait come before all that is expected": (["expect a/1 0", "ask a/2"], ["a/2", "a/1"]),
    "what is needed sooner comes first": (["expect a/1 5", "expect a/2 3", "expect b/3 4"], ["a/2", "b/3", "a/1"]),
    "of what is needed at once, what came first": (["expect a/1 3", "expect a/2 3"], ["a/1", "a/2"]),
    "a plan that changes its mind is obeyed": (["expect a/1 1", "expect a/2 2", "expect a/1 9"], ["a/2", "a/1"]),
    "an item of two plans has the sooner one": (["expect a/1 9", "expect a/2 5", "other a/1 2"], ["a/1", "a/2"]),
    "an item that is asked for twice comes once": (["ask a/1", "ask a/2", "ask a/1"], ["a/1", "a/2"]),
    "a request that does not stand still comes with what is needed now": (["expect a/1 1", "calm a/2"], ["a/2", "a/1"]),
    "and a reader that stands still overtakes it": (["calm a/1", "ask a/2"], ["a/2", "a/1"]),
    "what is expected and then asked for comes first": (["expect a/1 1", "expect a/2 9", "ask a/2"], ["a/2", "a/1"]),
    "what is withdrawn does not come": (["ask a/1", "ask a/2", "withdraw a/1"], ["a/2"]),
    "unless it is expected besides": (["ask a/1", "expect a/1 4", "withdraw a/1"], ["a/1"]),
    "what a plan no longer has does not come": (["expect a/1 1", "expect a/2 1", "forget a/1"], ["a/2"]),
    "unless another plan has it": (["expect a/1 1", "other a/1 7", "expect a/2 3", "forget a/1"], ["a/2", "a/1"]),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDERS)
def test_who_is_next(case: str, wishes: Wishes) -> None:
    steps, expected = ORDERS[case]
    for step in steps:
        what, item, *ahead = step.split()
        if what in ("expect", "other"):
            wishes.expect(item, int(ahead[0]), ME if what == "expect" else OTHER)
        elif what in ("ask", "calm"):
            wishes.ask(item, is_urgent=what == "ask")
        elif what == "withdraw":
            wishes.queue.withdraw(wishes.requests[item])
        else:
            wishes.queue.expect_no_more(ME, wishes.item(item).key)
    assert wishes.serve() == expected
    assert len(wishes.queue) == 0


def test_many_changes_of_plans_leave_no_trace(wishes: Wishes) -> None:
    for number in range(1000):
        wishes.expect("a/1", number % 7)
        wishes.expect("a/2", (number + 3) % 7)
    assert wishes.serve() == ["a/2", "a/1"]


# --- Who is served beside others ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_busy", "expected"),
    [
        (0, "a/soon"),
        (MOST_WORKERS - 1, "a/soon"),
        (MOST_WORKERS, None),  # the last threads are for those who stand still
    ],
)
def test_expected_items_leave_threads_to_those_who_wait(num_busy: int, expected: str | None, wishes: Wishes) -> None:
    wishes.expect("a/soon", 1)
    assert wishes.take(num_busy) == expected
    if expected is None:
        wishes.ask("a/now")
        assert wishes.take(num_busy) == "a/now"


def test_when_all_threads_are_busy_only_other_directories_are_served(wishes: Wishes) -> None:
    """A disk that hangs holds up no other."""
    wishes.ask("a/1")
    assert wishes.take() == "a/1"
    wishes.admit("a/1")
    wishes.ask("a/2")
    wishes.ask("b/3")
    assert wishes.take(MOST_URGENT_WORKERS) == "b/3"
    assert wishes.take(MOST_URGENT_WORKERS) is None
    wishes.finish("a/1")
    assert wishes.take(MOST_URGENT_WORKERS) == "a/2"


def test_of_those_that_compete_for_room_one_is_admitted_after_the_other(wishes: Wishes) -> None:
    wishes.queue.competitors = dict.fromkeys(("/a", "/b"), frozenset({"/a", "/b"}))
    for what in ("a/1", "b/2", "c/3"):
        wishes.ask(what)
    assert wishes.take() == "a/1"
    assert wishes.take() == "c/3"  # which has room of its own
    assert wishes.take() is None
    wishes.admit("a/1")
    assert wishes.take() == "b/2"


def test_an_item_that_has_to_wait_keeps_its_directories_from_those_behind_it(wishes: Wishes) -> None:
    """Else one that competes for half of the room would overtake one that competes for all of it, for ever."""
    wishes.queue.competitors = {"/a": frozenset({"/a"}), "/b": frozenset({"/a", "/b"}), "/c": frozenset({"/b", "/c"})}
    for what in ("a/1", "b/2", "c/3"):
        wishes.ask(what)
    assert wishes.take() == "a/1"
    assert wishes.take() is None
    wishes.admit("a/1")
    assert wishes.take() == "b/2"


def test_there_is_a_thread_for_so_many_directories_at_most(wishes: Wishes) -> None:
    wishes.ask("a/1")
    assert wishes.take(MOST_DIRECTORIES) is None
    assert wishes.take(MOST_DIRECTORIES - 1) == "a/1"


def test_a_prefetch_that_failed_is_not_tried_again_so_soon(wishes: Wishes) -> None:
    wishes.expect("a/1", 1)
    assert wishes.take() == "a/1"
    wishes.finish("a/1", has_failed=True)
    wishes.expect("a/1", 1)
    assert wishes.take() is None
    wishes.now += FAILED_FOR_S
    wishes.expect("a/1", 1)
    assert wishes.serve() == ["a/1"]
    wishes.expect("a/2", 1)
    assert wishes.take() == "a/2"
    wishes.finish("a/2", has_failed=True)
    wishes.ask("a/2")  # a reader asks at any time
    assert wishes.serve() == ["a/2"]
    wishes.expect("a/2", 1)  # what has come since has not failed
    assert wishes.take() == "a/2"


def test_the_one_who_asks_counts_as_the_cause_and_else_the_first_who_will_need_it(wishes: Wishes) -> None:
    wishes.expect("a/1", 7)
    wishes.expect("a/1", 3, group=OTHER)
    wishes.take()
    assert wishes.item("a/1").demand.cause == (OTHER, 0)
    wishes.ask("a/1", group=ME)
    demand = wishes.item("a/1").demand
    assert demand.cause == (ME, 0)
    assert (demand.is_urgent, demand.is_requested, demand.fail_if_disk_full_at) == (True, True, math.inf)
    assert demand.rank < (1,)


def test_a_running_item_that_is_cancelled_and_wanted_again_is_queued_anew(wishes: Wishes) -> None:
    wishes.ask("a/1")
    wishes.take()
    wishes.admit("a/1")
    wishes.queue.withdraw(wishes.requests["a/1"])
    assert wishes.take() is None
    assert len(wishes.queue) == 1  # most of its cost is paid: it goes on
    wishes.ask("a/1")
    assert wishes.take() is None
    wishes.queue.put_back(wishes.item("a/1"))
    assert wishes.take() == "a/1"


# --- Who waits for space ------------------------------------------------------------------------------------------


def test_items_without_room_wait_until_there_may_be_some(wishes: Wishes) -> None:
    wishes.ask("a/1")
    wishes.refuse("a/1")
    assert wishes.item("a/1").state is State.WAITING_FOR_SPACE
    assert wishes.queue.is_short_of_room
    assert wishes.take() is None
    wishes.queue.retry_waiting()
    assert wishes.take() == "a/1"


def test_prefetches_stay_back_where_a_reader_waits_for_the_same_room(wishes: Wishes) -> None:
    wishes.queue.competitors = dict.fromkeys(("/a", "/b"), frozenset({"/a", "/b"}))
    wishes.ask("a/1")
    wishes.refuse("a/1")
    wishes.expect("b/2", 1)
    wishes.expect("c/3", 2)
    wishes.queue.retry_waiting()
    assert [wishes.take(), wishes.take()] == ["a/1", "c/3"]
    wishes.finish("a/1")
    wishes.finish("c/3")
    assert wishes.serve() == ["b/2"]


def test_a_prefetch_without_room_holds_back_others_only_until_the_next_try(wishes: Wishes) -> None:
    wishes.expect("a/1", 1)
    wishes.expect("a/2", 2)
    wishes.refuse("a/1")
    assert wishes.take() is None
    wishes.queue.retry_waiting()
    assert wishes.serve() == ["a/1", "a/2"]


def test_a_reader_that_comes_to_wait_for_a_waiting_item_lets_it_try_at_once(wishes: Wishes) -> None:
    wishes.expect("a/1", 1)
    wishes.refuse("a/1")
    wishes.ask("a/1")
    assert wishes.take() == "a/1"


def test_a_waiting_item_that_is_no_longer_wanted_is_forgotten(wishes: Wishes) -> None:
    wishes.ask("a/1")
    wishes.refuse("a/1")
    wishes.queue.withdraw(wishes.requests["a/1"])
    assert len(wishes.queue) == 0
    assert wishes.queue.next_late_at() == math.inf


@pytest.mark.parametrize(("timeout_s", "patience_s"), [(60.0, DISK_PATIENCE_S), (1.0, 0.5)])
def test_after_a_while_a_reader_would_rather_fail_than_wait_for_a_full_disk(
    timeout_s: float, patience_s: float, wishes: Wishes
) -> None:
    wishes.ask("a/1", timeout_s=timeout_s)
    wishes.refuse("a/1")
    wishes.queue.retry_waiting()
    wishes.take()
    assert wishes.item("a/1").demand.fail_if_disk_full_at == wishes.now + patience_s


@given(st.lists(st.sampled_from(["wait", "retry", "take"]), max_size=20), st.floats(1, 100))
def test_a_request_is_late_whatever_its_item_is_doing(steps: list[str], timeout_s: float) -> None:
    """Refused at 1, it is late at its timeout, however often it tried since."""
    wishes = Wishes()
    wishes.ask("a/x", timeout_s=timeout_s)
    queued = wishes.item("a/x")
    for number, step in enumerate(["take", "wait", *steps]):
        if step == "retry":
            wishes.queue.retry_waiting()
        elif step == "take":
            wishes.queue.take()
        elif queued.state is State.RUNNING:
            wishes.queue.end_admission(queued, has_room=False)
            wishes.queue.wait_for_space(queued, float(number))
    assert wishes.queue.next_late_at() == 1 + timeout_s
    assert wishes.queue.take_late(timeout_s + 0.5) == []
    assert wishes.queue.take_late(timeout_s + 1) == [(queued, wishes.requests["a/x"])]
    assert wishes.queue.take_late(timeout_s + 1) == []
    assert queued.requests == []


def test_a_request_that_has_got_room_is_not_late(wishes: Wishes) -> None:
    wishes.ask("a/x", timeout_s=1.0)
    wishes.refuse("a/x")
    wishes.queue.retry_waiting()
    assert wishes.take() == "a/x"
    wishes.admit("a/x")
    assert wishes.queue.take_late(100.0) == []


def test_no_request_is_late_while_a_download_goes_to_the_same_room(wishes: Wishes) -> None:
    """A store that is away for a minute holds up downloads that have room, and is no reason to say there is none."""
    wishes.ask("d/coming", timeout_s=1.0)
    assert wishes.take() == "d/coming"
    wishes.admit("d/coming")
    wishes.ask("d/waiting", timeout_s=1.0)
    wishes.refuse("d/waiting")
    assert wishes.queue.take_late(60.0) == []
    wishes.finish("d/coming")
    assert wishes.queue.take_late(60.5) == []
    assert [name_of(queued) for queued, _ in wishes.queue.take_late(61.0)] == ["d/waiting"]


def test_positions_count_those_who_wait_and_came_before(wishes: Wishes) -> None:
    for what in ("a/1", "a/2", "a/3"):
        wishes.ask(what)
    wishes.expect("a/4", 1)
    assert [wishes.queue.position(wishes.item(f"a/{number}")) for number in (1, 2, 3, 4)] == [0, 1, 2, 3]
    wishes.take()
    assert [wishes.queue.position(wishes.item(f"a/{number}")) for number in (1, 2, 3)] == [0, 0, 1]
