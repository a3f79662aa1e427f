"""How much memory this process may count on: what the machine has, or the limit of its control group."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def memory_limit(root: Path = Path("/")) -> int:
    """Give the bytes of memory of the machine, or of the smallest control group that this process is in."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    """Give the limits of all groups that this process is in, of both versions of control groups."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux, or nothing to be seen
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for top in (mount, mount / "unified"):
                yield from _limits_up_to(top, path, ("memory.max", "memory.high"))
        elif "memory" in controllers.split(","):
            yield from _limits_up_to(mount / "memory", path, ("memory.limit_in_bytes",))


def _limits_up_to(top: Path, path: str, names: tuple[str, ...]) -> Iterator[int]:
    """Give the limits of a group and of those above it. In a container the path may be one of the world outside."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        for name in names:
            try:
                text = top.joinpath(*parts[:depth], name).read_text().strip()
            except OSError:
                continue
            if text.isdecimal():
                yield int(text)
