"""Shards are stored by threads, described in the order of submission, and fail by name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ColumnTypeError, ConfigError
from penstock.publish.shard_queue import ShardQueue

if TYPE_CHECKING:
    from collections.abc import Callable


class Shard:
    """Stands for a shard: storing it calls a function."""

    def __init__(self, name: str, store: Callable[[], Any]) -> None:
        self.names, self.store = (name,), store


def test_results_come_in_the_order_of_submission() -> None:
    queue: Any = ShardQueue(2)
    for number in range(20):
        queue.submit(Shard(f"shard {number}", partial(int, number)))
    assert queue.results() == list(range(20))
    assert queue.written() == queue.results()
    queue.close()


def test_the_first_failure_ends_it_with_the_name_of_its_shard() -> None:
    def fail() -> None:
        raise ColumnTypeError("no number")

    queue: Any = ShardQueue(1)
    queue.submit(Shard("one", lambda: 1))
    queue.submit(Shard("two", fail))
    with pytest.raises(ColumnTypeError, match="cannot write shard two: no number"):
        queue.results()
    assert queue.written() == [1]
    with pytest.raises(ConfigError, match="max_workers=0"):
        ShardQueue(0)
