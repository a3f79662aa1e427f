"""Engines call a function for each number, and say which number a result belongs to."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import CacheError
from penstock.publish.engines import ProcessPool, RayEngine, ThisProcess

if TYPE_CHECKING:
    from pathlib import Path


def square(number: int) -> int:
    return number * number


def die_once(marker: Path, number: int) -> int:
    if number == 2 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("engine", [ThisProcess(), ProcessPool(2)])
def test_each_number_has_its_result(engine: Any) -> None:
    assert dict(engine.run(square, range(1, 5), "squares")) == {1: 1, 2: 4, 3: 9, 4: 16}
    assert dict(engine.run(square, [], "nothing")) == {}


def test_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    done = ProcessPool(2).run(partial(die_once, tmp_path / "dead"), range(4), "numbers")
    assert dict(done) == {number: number for number in range(4)}
    with pytest.raises(CacheError, match="processes that build numbers died 3 times in a row"):
        list(ProcessPool(1).run(die, [1], "numbers"))


def test_what_tasks_of_ray_need() -> None:
    assert RayEngine().task_options()["num_cpus"] == 1
    assert RayEngine(use_gpu=True).task_options()["num_gpus"] == 1
    needs = RayEngine(resources_per_worker={"CPU": 0.5, "disk": 1}).task_options()
    assert (needs["num_cpus"], needs["resources"]) == (0.5, {"disk": 1})
