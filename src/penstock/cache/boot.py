"""What survives a loss of power: which boot of the machine this is, and files that are flushed to the disk."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_LINUX = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_id() -> str | None:
    """Give a name of this boot, or None where the system has none."""
    try:
        return _LINUX.read_text().strip() or None
    except OSError:
        return None


def flush_file(path: Path) -> None:
    """Wait until the bytes of a file are on the disk."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.fdatasync(number) if hasattr(os, "fdatasync") else os.fsync(number)
    finally:
        os.close(number)
