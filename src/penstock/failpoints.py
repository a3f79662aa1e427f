"""Named places where a test may kill the process, so that every moment of a crash can be tried on purpose."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "PENSTOCK_FAILPOINT"

POINTS = (
    "start.begun",
    "start.listening",
    "start.ready",
    "register.before",
    "download.started",
    "download.half",
    "download.done",
    "unpack.started",
    "unpack.done",
    "publish.before",
    "publish.between_parts",
    "publish.after",
    "evict.before",
    "evict.between_parts",
    "evict.after",
)

CRAWL_POINTS = ("laion.between", "laion.stored")
TARGET_POINTS = ("target.kept", "target.ready", "target.between", "target.published")


def _kill_at(point: str) -> None:
    """Kill this process as `kill -9` would if the environment names this point.

    `point:once=/path` does so only if it can create that file, so that the successor of the killed process goes on.
    """
    name, _, option = os.environ.get(VARIABLE, "").partition(":")
    if name != point:
        return
    with suppress(FileExistsError):
        if option:
            Path(option.removeprefix("once=")).touch(exist_ok=False)
        signal.raise_signal(signal.SIGKILL)


# Of a process whose environment names no point when it starts, as all but those of tests, it costs next to nothing.
failpoint: Callable[[str], object] = _kill_at if os.environ.get(VARIABLE) else frozenset[str]().__contains__
