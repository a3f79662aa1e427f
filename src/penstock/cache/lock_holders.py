"""Which processes hold a lock on a file: the kernel knows, where it is Linux."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

_LOCKS = Path("/proc/locks")
# 12: FLOCK  ADVISORY  READ 4711 08:01:1234567 0 EOF
_SHARED_LOCK = re.compile(r"^\d+: FLOCK +\S+ +READ +(\d+) +[0-9a-f]+:[0-9a-f]+:(\d+) ", re.ASCII | re.MULTILINE)


def parse_locks(text: str) -> dict[int, set[int]]:
    """Read the kernel's list of locks: who shares which file, as process ids by inode. Who only waits is left out."""
    holders: dict[int, set[int]] = {}
    for pid, inode in _SHARED_LOCK.findall(text):
        holders.setdefault(int(inode), set()).add(int(pid))
    return holders


def who_shares(paths: Iterable[Path]) -> dict[Path, tuple[int, ...]]:
    """Give the processes that hold a shared lock on each file; none where the system does not tell."""
    try:
        holders = parse_locks(_LOCKS.read_text())
    except OSError:
        holders = {}
    return {path: _holders_of(path, holders) for path in paths}


def _holders_of(path: Path, holders: dict[int, set[int]]) -> tuple[int, ...]:
    try:
        status = path.lstat()
    except OSError:
        return ()
    # Devices are not compared here, since some file systems call theirs otherwise in the list of locks.
    return tuple(sorted(pid for pid in holders.get(status.st_ino, ()) if _has_open(pid, status)))


def _has_open(pid: int, status: os.stat_result) -> bool:
    """Tell whether a process has a file open: a file of another disk may have the same inode."""
    with suppress(OSError):  # it ended meanwhile, or is somebody else's
        for opened in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it was closed meanwhile
                found = opened.stat()
                if (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino):
                    return True
    return False
