"""Anything read ahead: in order, whole, with its errors, and without threads that stay."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import MemoryShardedSource, PrefetchIterator, block_mixture_interleave, create_data_iterator
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-prefetch")]


def wait_for_no_threads() -> None:
    deadline = time.monotonic() + 10
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not threads()


def test_items_come_in_order_and_ahead() -> None:
    taken: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    items = PrefetchIterator(source(), buffer_size=4, num_workers=3, transform=lambda number: number * 2)
    assert next(items) == 0
    deadline = time.monotonic() + 10
    while len(taken) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 5 <= len(taken) <= 8  # what is ready, and what is under way
    assert list(items) == list(range(2, 200, 2))
    with pytest.raises(StopIteration):
        next(items)
    wait_for_no_threads()


def test_errors_come_in_their_place() -> None:
    def source() -> Iterator[int]:
        yield from range(3)
        raise ZeroDivisionError

    items = PrefetchIterator(source())
    assert list(islice(items, 3)) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        next(items)
    with pytest.raises(ConfigError, match="a int cannot be iterated over"):
        PrefetchIterator(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["close", "drop", "with"])
def test_threads_end(how: str) -> None:
    items = PrefetchIterator(count(), buffer_size=2)
    next(items)
    if how == "close":
        items.close()
    elif how == "with":
        with items:
            pass
    del items
    gc.collect()
    wait_for_no_threads()


def test_batches_of_anything() -> None:
    rows: list[dict[str, Any]] = [{"n": n} for n in range(105)]
    plain = list(create_data_iterator(rows, 10, shuffle=False))
    assert [len(batch["n"]) for batch in plain] == [10] * 10 + [5]
    assert np.concatenate([batch["n"] for batch in plain]).tolist() == list(range(105))
    shuffled = np.concatenate([batch["n"] for batch in create_data_iterator(rows, 10, drop_last=True, seed=1)])
    assert len(shuffled) == len(set(shuffled.tolist())) == 100
    assert shuffled.tolist() != sorted(shuffled.tolist())


def test_a_mix_of_datasets() -> None:
    a, b = [{"x": "a"}] * 10, MemoryShardedSource([{"x": "b"}] * 1000)
    mixed = block_mixture_interleave({"a": a, "b": b}, weights={"a": 0.25, "b": 0.75}, block_size=8)
    counts = Counter(sample["x"] for sample in islice(iter(mixed), 400))
    assert counts == {"a": 100, "b": 300}
    assert next(iter(mixed)).keys() == {"x"}
    ended = block_mixture_interleave({"a": a, "b": b}, stop="all_exhausted")
    assert Counter(sample["x"] for sample in ended) == {"a": 10, "b": 1000}
