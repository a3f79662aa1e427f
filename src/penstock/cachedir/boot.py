"""What survives a loss of power: boots of the machine, and files that are flushed to the disk.

Neither a file that was brought nor the line of the ledger about it is flushed before the file gets its name: that would
make every download wait for the disk. Instead the ledger says in which boot a file came, until it is flushed, and a
directory says, flushed once in each boot, since when files were brought to it. So what a loss of power may have spoilt
is known: files of an earlier boot that were not flushed, and files of that time of which the ledger knows nothing.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from penstock.cachedir.layout import boots_path
from penstock.files import make_folders

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


def note_boot(directory: Path) -> None:
    """Have on the disk that files are brought to a directory in this boot, from now on."""
    boots = _boots(directory)
    if boots and boots[-1][0] == boot_id():
        return
    path = boots_path(directory)
    make_folders(path.parent, 0o700)
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(number, json.dumps([boot_id(), time.time_ns()]).encode() + b"\n")
        os.fsync(number)
    finally:
        os.close(number)


def is_doubtful(directory: Path, status: os.stat_result) -> bool:
    """Tell whether a file that the ledger does not know may be one that we brought before the power failed."""
    boots = _boots(directory)
    earlier = [since_ns for boot, since_ns in boots if boot != boot_id()]
    now = [since_ns for boot, since_ns in boots if boot == boot_id()]
    return bool(earlier) and min(earlier) <= status.st_ctime_ns < min(now, default=time.time_ns())


def _boots(directory: Path) -> list[tuple[str | None, int]]:
    found = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for line in boots_path(directory).read_bytes().splitlines():
            with suppress(ValueError, TypeError):  # a line that was cut short
                boot, since_ns = json.loads(line)
                found.append((boot, int(since_ns)))
    return found
