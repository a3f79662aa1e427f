"""Why a training loop waits for data, as the counts show it, and what helps: said once, if at all."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.counters import LoopStats, Stats

VARIABLE = "PENSTOCK_WARN_WAITING"
# Loops are looked at after so many seconds of taking batches and working on them. The first stretch only says where the
# second begins: caches fill and workers start in it. So short runs are never told anything.
STRETCH_S = 60.0
_MUCH = 0.1  # of its time, more than a loop should wait
_MUCH_AGAIN = 0.1  # of its downloads, more than a cache should fetch a second time
_IDLE = 0.5  # of their time, less than workers work who hold a loop up

_WORK = {
    "decoding": "decoding values",
    "transforming": "your transforms (`sample_transform`, `batch_transform` or `get_item`)",
    "collating": "collating samples to batches",
    "reading": "reading stored values from shards",
}


class WaitingWatch:
    """Looks at the counts of a loop every now and then, until there is something to say.

    Args:
        count: Gives the counts of now, with those of a loop.
        explain: Says from two counts why the loop waited between them; None: it did not, or not much.
        is_on: Whether anything is to be said; the environment can forbid it.
    """

    def __init__(
        self, count: Callable[..., Stats], explain: Callable[[Stats, Stats], str | None], *, is_on: bool
    ) -> None:
        self._count, self._explain = count, explain
        self._before: Stats | None = None
        self._next_look_s = STRETCH_S if is_on and os.environ.get(VARIABLE) != "0" else float("inf")

    def is_due(self, passed_s: float) -> bool:
        """Return whether it is time for a look, when a loop has waited and worked for so long."""
        return passed_s >= self._next_look_s

    def look(self, loop: LoopStats) -> None:
        """Warn if the loop waited too much since the last look."""
        self._next_look_s = loop.seconds_waiting + loop.seconds_training + STRETCH_S
        before, self._before = self._before, self._count(loop=loop)
        text = None if before is None else self._explain(before, self._before)
        if text is not None:
            self._next_look_s = float("inf")
            warnings.warn(text, UserWarning, stacklevel=3)


def explain_waiting(
    before: Stats, after: Stats, *, num_workers: int, num_processors: int, limit: int | None
) -> str | None:
    """Describe why a loop waited for data between two counts, and what helps; None if it did not wait much.

    `num_workers` are processes or threads, 0 if the loop reads by itself; `limit` is that of the cache.
    """
    if before.loop is None or after.loop is None:
        return None
    waiting_s = after.loop.seconds_waiting - before.loop.seconds_waiting
    training_s = after.loop.seconds_training - before.loop.seconds_training
    passed_s = waiting_s + training_s
    if passed_s <= 0 or waiting_s < _MUCH * passed_s:
        return None
    spent = {name: _seconds(after, name) - _seconds(before, name) for name in (*_WORK, "waiting")}
    busy_s, capacity_s = sum(spent.values()), max(1, num_workers) * passed_s
    if spent["waiting"] >= busy_s / 2 and busy_s > 0:
        reason = _explain_store(before, after, training_s, passed_s, limit)
    elif num_workers and busy_s < _IDLE * capacity_s:
        reason = (
            f"The workers are idle {1 - busy_s / capacity_s:.0%} of the time, so passing batches to this process"
            " is what takes long: make batches smaller, or read whole columns in threads with columnar=True"
        )
    else:
        reason = _explain_work(spent, num_workers, num_processors)
    return (
        f"in the last {passed_s:.0f} s, the training loop waited for data {waiting_s / passed_s:.0%} of the time."
        f" {reason}. See docs/waiting.md; to turn this warning off, pass warn_when_waiting=False or set"
        f" {VARIABLE}=0"
    )


def _seconds(stats: Stats, name: str) -> float:
    seconds: float = getattr(stats, f"seconds_{name}")
    return seconds


def _explain_store(before: Stats, after: Stats, training_s: float, passed_s: float, limit: int | None) -> str:
    downloads, again = after.downloads - before.downloads, after.downloads_again - before.downloads_again
    if again and again >= _MUCH_AGAIN * downloads:
        size = "" if limit is None else f" of {format_bytes(limit)}"
        return (
            f"The cache is too small: {again} of the {downloads} shards fetched in this time had been fetched"
            f" before and were removed to make room. Raise the cache_limit{size}, or lower shuffle_block_size"
        )
    num_bytes = after.bytes - before.bytes
    needed = "more" if training_s <= 0 else f"{format_bytes(num_bytes / training_s)}/s"
    return (
        f"The store is too slow: samples came at {format_bytes(num_bytes / passed_s)}/s, but training needs"
        f" {needed}. Move the data closer, compress the shards, or fetch them in advance with `penstock cache"
        " warm`"
    )


def _explain_work(spent: dict[str, float], num_workers: int, num_processors: int) -> str:
    largest = max(_WORK, key=lambda name: spent[name])
    share = spent[largest] / max(1e-9, sum(spent.values()))
    what = f"Most of the time ({share:.0%}) goes to {_WORK[largest]}"
    if num_workers < num_processors:
        return (
            f"{what}: use more workers (you have num_workers={num_workers}, and this machine has {num_processors}"
            " processors)"
        )
    return (
        f"{what}, and there are already as many workers ({num_workers}) as processors: do that work when you write"
        " the dataset, read only the columns you need, or give the job more processors"
    )
