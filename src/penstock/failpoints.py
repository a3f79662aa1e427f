"""Named places where a test may kill the process, so that every moment of a crash can be tried on purpose."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

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

TARGET_POINTS = ("target.kept", "target.ready", "target.between", "target.published")


def failpoint(point: str) -> None:
    """Kill this process as `kill -9` would if the environment names this point.

    `point:once=/path` does so only if it can create that file, so that the successor of the killed process goes on.
    """
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    name, _, option = wanted.partition(":")
    if name != point:
        return
    with suppress(FileExistsError):
        if option:
            Path(option.removeprefix("once=")).touch(exist_ok=False)
        signal.raise_signal(signal.SIGKILL)
