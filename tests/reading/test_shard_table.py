"""Many questions at the same time, and their answers in order."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from penstock.errors import StoreError
from penstock.reading.shard_table import ask_all


def test_answers_come_in_order_however_many_there_are() -> None:
    assert ask_all([partial(int, number) for number in range(100)]) == list(range(100))
    assert ask_all([]) == []


def test_all_are_asked_at_the_same_time() -> None:
    together = threading.Barrier(10, timeout=60)
    assert sorted(ask_all([together.wait] * 10)) == list(range(10))


def test_an_error_is_raised_though_others_are_still_waiting() -> None:
    gate = threading.Event()

    def fail() -> bool:
        raise StoreError("away")

    try:
        with pytest.raises(StoreError, match="away"):
            ask_all([fail, gate.wait])
    finally:
        gate.set()
