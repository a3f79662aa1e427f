"""Why a loop waits: decided from plain counts; said once, not too soon, and not at all if that is not wanted."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

from penstock import StreamingDataLoader, StreamingDataset
from penstock.counters import LoopStats, Stats
from penstock.loaders import waiting
from penstock.loaders.waiting import STRETCH_S, VARIABLE, WaitingWatch, explain_waiting
from tests.streaming import write_samples

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20
START = Stats(
    samples=500, bytes=90 * MB, downloads=9, downloads_again=3, seconds_waiting=7.0, loop=LoopStats(seconds_waiting=2.0)
)


def after(*, waited: float, trained: float, **more: float) -> Stats:
    """What is counted some time after the start."""
    loop = LoopStats(seconds_waiting=2.0 + waited, seconds_training=trained)
    counts: dict[str, Any] = {name: getattr(START, name) + amount for name, amount in more.items()}
    return Stats(**{"seconds_waiting": START.seconds_waiting, **counts}, loop=loop)


def explain(now: Stats, *, workers: int = 2, processors: int = 8, limit: int | None = None) -> str | None:
    return explain_waiting(START, now, num_workers=workers, num_processors=processors, limit=limit)


def test_a_loop_that_hardly_waits_is_told_nothing() -> None:
    assert explain(after(waited=5.9, trained=54.1, seconds_waiting=100)) is None
    assert explain(after(waited=0, trained=0)) is None
    assert explain_waiting(Stats(), Stats(), num_workers=0, num_processors=1, limit=None) is None  # a stock loader


def test_the_store() -> None:
    text = explain(after(waited=20, trained=40, seconds_waiting=90, seconds_decoding=20, bytes=600 * MB, downloads=30))
    assert text is not None
    assert text.startswith("in the last 60 s, the training loop waited for data 33% of the time. The store is too slow")
    assert "came at 10 MB/s, but training needs 15 MB/s" in text
    assert "penstock cache warm" in text
    assert "docs/waiting.md" in text
    assert "warn_when_waiting=False" in text
    assert VARIABLE in text


def test_the_limit_of_the_cache() -> None:
    counts = {"seconds_waiting": 90, "bytes": 600 * MB, "downloads": 30}
    text = explain(after(waited=20, trained=40, **counts, downloads_again=12), limit=800 * MB)
    assert text is not None
    assert "12 of the 30 shards fetched in this time had been fetched before" in text
    assert "Raise the cache_limit of 800 MB" in text
    few = explain(after(waited=20, trained=40, **counts, downloads_again=2))
    assert few is not None
    assert "The store is too slow" in few


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("decoding", "decoding values"),
        ("transforming", "your transforms"),
        ("collating", "collating samples"),
        ("reading", "reading stored values from shards"),
    ],
)
def test_work(name: str, words: str) -> None:
    now = after(waited=30, trained=30, **{f"seconds_{name}": 90, "seconds_waiting": 10})
    text = explain(now)
    assert text is not None
    assert f"Most of the time (90%) goes to {words}" in text
    assert "use more workers (you have num_workers=2, and this machine has 8 processors)" in text
    full = explain(now, processors=2)
    assert full is not None
    assert "more workers" not in full
    assert "as many workers (2) as processors" in full


def test_a_loop_that_reads_by_itself_wants_workers() -> None:
    text = explain(after(waited=30, trained=30, seconds_decoding=25), workers=0)
    assert text is not None
    assert "you have num_workers=0" in text


def test_handing_over() -> None:
    text = explain(after(waited=30, trained=30, seconds_reading=12))
    assert text is not None
    assert "workers are idle 90% of the time" in text
    assert "columnar=True" in text


class Loop:
    """A loop that always waits half of its time, for workers that decode, and the clock that goes with it."""

    def __init__(self, *, is_on: bool = True) -> None:
        self.passed_s = 0.0
        self.num_counts = 0
        self.watch = WaitingWatch(self.count, self.explain, is_on=is_on)

    def count(self, *, loop: LoopStats) -> Stats:
        self.num_counts += 1
        return Stats(loop=loop, seconds_decoding=loop.seconds_training)

    def explain(self, before: Stats, now: Stats) -> str | None:
        return explain_waiting(before, now, num_workers=1, num_processors=8, limit=None)

    def run(self, seconds: float) -> list[str]:
        """Take a batch a second for so long, and give what was said."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(int(seconds)):
                self.passed_s += 1
                if self.watch.is_due(self.passed_s):
                    half = self.passed_s / 2
                    self.watch.look(LoopStats(seconds_waiting=half, seconds_training=half))
        return [str(warning.message) for warning in said]


def test_it_is_said_once_and_not_of_the_beginning() -> None:
    loop = Loop()
    assert loop.run(2 * STRETCH_S - 1) == []
    (text,) = loop.run(2)
    assert "waited for data 50% of the time" in text
    assert loop.run(20 * STRETCH_S) == []
    assert loop.num_counts == 2


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Loop(is_on=False).run(10 * STRETCH_S) == []
    monkeypatch.setenv(VARIABLE, "0")
    loop = Loop()
    assert loop.run(10 * STRETCH_S) == []
    assert loop.num_counts == 0
    monkeypatch.setenv(VARIABLE, "1")
    assert len(Loop().run(10 * STRETCH_S)) == 1


def _work(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "sum": sum(range(100_000))}


@pytest.mark.parametrize("is_on", [True, False])
def test_a_loader_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on: bool) -> None:
    """With real counts, and stretches that are short enough for a test."""
    monkeypatch.setattr(waiting, "STRETCH_S", 0.0)
    dataset = StreamingDataset(local=write_samples(tmp_path, 40), batch_size=4, sample_transform=_work)
    loader = StreamingDataLoader(dataset, warn_when_waiting=is_on)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for batch in loader:
            assert len(batch["id"]) == 4
    found = [warning for warning in said if "waited" in str(warning.message)]
    assert len(found) == is_on
    if is_on:
        assert "your transforms" in str(found[0].message)
        assert found[0].filename == __file__  # where the loop is
