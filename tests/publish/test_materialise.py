"""Who makes which part of what is computed once: decided with plain values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock import LocalDataset, MemoryShardedSource
from penstock.pipeline.caching import follow_plan
from penstock.publish.engines import ThisProcess
from penstock.publish.materialise import PartsTarget, materialise

if TYPE_CHECKING:
    from pathlib import Path


def test_a_part_that_another_release_began_is_made_anew(tmp_path: Path) -> None:
    source = MemoryShardedSource([{"n": n} for n in range(40)], num_shards=4, fingerprint="numbers")
    tasks, target = follow_plan(source, PartsTarget(str(tmp_path / "cache")), 1)
    begun = tmp_path / "cache" / ".000001.saving"
    begun.mkdir(parents=True)
    (begun / "_unfinished.json").write_text(json.dumps({"version": 0, "shards": [], "has_all": False}))
    materialise(tasks, target, ThisProcess())
    assert [sample["n"] for sample in LocalDataset(tmp_path / "cache")] == list(range(40))
    assert not begun.exists()


class Numbers:
    """Six tasks, whose samples are not opened."""

    task_names = tuple(map(str, range(6)))
    fingerprint = "numbers"

    def open_task(self, number: int) -> Any:
        raise AssertionError(number)


class Parts:
    """Parts of which some are whole, and some are being made by another process until they are waited for."""

    shown = "parts"

    def __init__(self, whole: set[int], busy: set[int]) -> None:
        self.whole, self.busy = set(whole), busy
        self.made: list[int] = []
        self.is_finished = False

    def find(self, number: int) -> str | None:
        return f"found {number}" if number in self.whole else None

    def make(self, tasks: Any, number: int, *, waits: bool) -> str | None:
        if number in self.busy and not waits:
            return None
        self.made.append(number)
        self.whole.add(number)
        return f"made {tasks.task_names[number]}"

    def finish(self, num_tasks: int) -> None:
        assert len(self.whole) == num_tasks
        self.is_finished = True


def test_what_is_whole_is_not_made_and_what_others_make_comes_last() -> None:
    parts: Any = Parts(whole={1}, busy={0, 4})
    seen: list[Any] = []
    materialise(Numbers(), parts, ThisProcess(), seen.append)
    assert parts.made == [2, 3, 5, 0, 4]
    assert seen == ["found 1", "made 2", "made 3", "made 5", "made 0", "made 4"]
    assert parts.is_finished


def test_it_stops_after_a_part_and_goes_on_later() -> None:
    parts: Any = Parts(whole=set(), busy=set())
    materialise(Numbers(), parts, ThisProcess(), is_stopped=lambda: len(parts.made) == 2)
    assert parts.made == [0, 1]
    assert not parts.is_finished
    materialise(Numbers(), parts, ThisProcess())
    assert parts.made == list(range(6))
    assert parts.is_finished
