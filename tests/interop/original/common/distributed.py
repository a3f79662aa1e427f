"""Runs a test in several processes that form a process group."""

from __future__ import annotations

import functools
import multiprocessing
import os
import tempfile
import traceback
from typing import TYPE_CHECKING, Any

import torch.distributed

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Barrier


class DistributedTest:
    """Each test of a subclass runs in `world_size` forked processes, or as many as its mark `world_size` says."""

    world_size = 1

    def __init_subclass__(cls) -> None:
        for name, test in list(vars(cls).items()):
            if name.startswith("test_"):
                setattr(cls, name, _in_processes(test, _count(test, cls.world_size)))


def _count(test: Callable[..., None], default: int) -> int:
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "world_size"]
    return int(marks[0].args[0]) if marks else default


def _in_processes(test: Callable[..., None], world_size: int) -> Callable[..., None]:
    @functools.wraps(test)
    def run(self: Any, **arguments: Any) -> None:
        context = multiprocessing.get_context("fork")
        failures = context.SimpleQueue()
        leaving = context.Barrier(world_size)
        with tempfile.TemporaryDirectory() as folder:
            meeting, call = f"file://{folder}/meeting", functools.partial(test, self, **arguments)
            processes = [
                context.Process(target=_one_rank, args=(call, rank, world_size, meeting, failures, leaving))
                for rank in range(world_size)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join(120)
                process.kill()
        assert failures.empty(), failures.get()
        assert not any(process.exitcode for process in processes)

    return run


def _one_rank(
    call: Callable[[], None], rank: int, world_size: int, meeting: str, failures: Any, leaving: Barrier
) -> None:
    ranks = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update({name: str(value) for name, value in ranks.items()})
    try:
        torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
        call()
        leaving.wait(100)  # a rank that left now could break the connection of one that still meets others
        torch.distributed.destroy_process_group()
    except BaseException:
        failures.put(traceback.format_exc())
        leaving.abort()
        raise
