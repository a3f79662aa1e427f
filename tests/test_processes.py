"""Each process has its own: made once for all that ask, never shared over a fork, never pickled."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from penstock.processes import PerProcess, abandon_in_children

if TYPE_CHECKING:
    from collections.abc import Callable


class Value:
    """Something that knows in which process it was made."""

    def __init__(self) -> None:
        self.pid = os.getpid()


class Resource:
    """Something that counts how often it was let go of."""

    def __init__(self, error: Exception | None = None) -> None:
        self.num_abandoned = 0
        self._error = error

    def after_fork_in_child(self) -> None:
        self.num_abandoned += 1
        if self._error is not None:
            raise self._error


def in_child(check: Callable[[], bool]) -> bool:
    """Return what a forked child finds."""
    pid = os.fork()
    if pid == 0:
        is_right = False
        try:
            is_right = check()
        finally:
            os._exit(0 if is_right else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_threads_that_race_for_it_get_the_same_one() -> None:
    num_made = 0
    meeting = threading.Barrier(8, timeout=30)

    def make() -> Value:
        nonlocal num_made
        num_made += 1
        return Value()

    def ask(value: PerProcess[Value]) -> Value:
        meeting.wait()
        return value.get()

    with ThreadPoolExecutor(8) as pool:
        for number in range(50):
            value = PerProcess(make)
            assert len(set(pool.map(ask, [value] * 8))) == 1
            assert num_made == number + 1


def test_a_failure_to_make_it_is_told_and_the_next_one_tries_again() -> None:
    attempts = iter([ValueError("not yet"), None])

    def make() -> Value:
        error = next(attempts)
        if error is not None:
            raise error
        return Value()

    value = PerProcess(make)
    with pytest.raises(ValueError, match="not yet"):
        value.get()
    assert value.made is None
    assert value.get() is value.made


def test_a_child_makes_its_own_and_so_does_its_child() -> None:
    value = PerProcess(Value)
    mine = value.get()

    def check() -> bool:
        return value.made is None and value.get().pid == os.getpid() and value.get() is value.get()

    assert in_child(lambda: check() and in_child(check))
    assert value.get() is mine


def test_a_child_need_not_wait_for_a_thread_that_it_does_not_have() -> None:
    """A thread is in the middle of making it, and holds the lock, while this process is forked."""
    begun, goes_on = threading.Event(), threading.Event()
    parent = os.getpid()

    def make() -> Value:
        if os.getpid() == parent:
            begun.set()
            goes_on.wait(30)
        return Value()

    value = PerProcess(make)
    thread = threading.Thread(target=value.get)
    thread.start()
    assert begun.wait(30)
    try:
        assert in_child(lambda: value.get().pid == os.getpid())
    finally:
        goes_on.set()
        thread.join()
    assert value.get().pid == parent


def test_what_is_forgotten_is_given_back_and_made_anew() -> None:
    value = PerProcess(Value)
    assert value.forget() is None
    first = value.get()
    assert value.forget() is first
    assert value.made is None
    assert value.get() is not first


def test_a_pickle_carries_how_to_make_it_and_not_what_was_made() -> None:
    value = PerProcess(Value)
    mine = value.get()
    copy = pickle.loads(pickle.dumps(value))
    assert copy.made is None
    assert copy.get() is not mine
    assert in_child(lambda: copy.made is None and copy.get().pid == os.getpid())


def test_whatever_asked_for_it_is_let_go_of_in_children_once_each() -> None:
    resource = Resource()
    abandon_in_children(resource)
    assert in_child(lambda: resource.num_abandoned == 1 and in_child(lambda: resource.num_abandoned == 1))
    assert resource.num_abandoned == 0


def test_one_that_is_broken_does_not_keep_the_others_from_being_let_go_of() -> None:
    broken = [Resource(OSError("closed already")) for _ in range(3)]
    others = [Resource() for _ in range(3)]
    for pair in zip(broken, others, strict=True):
        for resource in pair:
            abandon_in_children(resource)
    assert in_child(lambda: all(resource.num_abandoned == 1 for resource in broken + others))


def test_nothing_is_kept_alive_by_having_asked_for_it() -> None:
    gc.disable()
    try:
        resource, value = Resource(), PerProcess(Value)
        abandon_in_children(resource)
        gone: list[weakref.ref[object]] = [weakref.ref(resource), weakref.ref(value), weakref.ref(value.get())]
        del resource, value
        assert [each() for each in gone] == [None, None, None]
    finally:
        gc.enable()
