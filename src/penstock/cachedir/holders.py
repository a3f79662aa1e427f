"""Who keeps files from being evicted: the kernel knows which process has locked which file."""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LOCKS = Path("/proc/locks")  # Linux alone tells
# 12: FLOCK  ADVISORY  READ 4711 08:01:1234567 0 EOF
_FLOCK = re.compile(r"^\d+: FLOCK +\S+ +READ +(\d+) +([0-9a-f]+):([0-9a-f]+):(\d+) ", re.ASCII | re.MULTILINE)
_MOST_NAMED = 8

File = tuple[int, int]  # device and inode


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, and what it holds."""

    pid: int
    num_files: int
    num_bytes: int


def find_holders(sizes: Mapping[File, int], locks: str) -> list[Holder]:
    """Return who holds which of some files, given the kernel's list of locks; who holds most comes first."""
    held = {
        (int(pid), (os.makedev(int(major, 16), int(minor, 16)), int(inode)))
        for pid, major, minor, inode in _FLOCK.findall(locks)
    }
    if not any(file in sizes for _, file in held):
        # Some file systems (Btrfs, overlays) show another device number here than in `stat`.
        by_inode = {inode: (device, inode) for device, inode in sizes}
        held = {(pid, by_inode[inode]) for pid, (_, inode) in held if inode in by_inode}
    files, num_bytes = Counter[int](), Counter[int]()
    for pid, file in held:
        if file in sizes:
            files[pid] += 1
            num_bytes[pid] += sizes[file]
    holders = [Holder(pid, files[pid], num_bytes[pid]) for pid in files]
    return sorted(holders, key=lambda holder: (-holder.num_bytes, holder.pid))


def describe_holders(holders: Sequence[Holder], names: Mapping[int, str]) -> str:
    """Put into words who holds how much, those who hold most each for itself."""
    words = [
        f"process {holder.pid}{f' [{names[holder.pid]}]' if holder.pid in names else ''} holds"
        f" {holder.num_files} of them, {format_bytes(holder.num_bytes)}"
        for holder in holders[:_MOST_NAMED]
    ]
    rest = holders[_MOST_NAMED:]
    if rest:
        words.append(f"{len(rest)} others hold {format_bytes(sum(holder.num_bytes for holder in rest))}")
    return "; ".join(words)


def who_holds(sizes: Mapping[Path, int]) -> str:
    """Describe who holds some files now, given what each stands for in bytes; empty where the system does not tell."""
    holders = _find_now(sizes)
    names = {}
    for holder in holders[:_MOST_NAMED]:
        with suppress(OSError):  # the program without its arguments: these may hold secrets
            names[holder.pid] = Path(f"/proc/{holder.pid}/comm").read_text().strip()
    return describe_holders(holders, names)


def pids_holding(path: Path) -> tuple[int, ...]:
    """Return the processes that share the lock on a file now; none where the system does not tell."""
    return tuple(sorted(holder.pid for holder in _find_now({path: 0})))


def _find_now(sizes: Mapping[Path, int]) -> list[Holder]:
    found: dict[File, int] = {}
    for path, num_bytes in sizes.items():
        with suppress(OSError):
            status = path.lstat()
            found[status.st_dev, status.st_ino] = num_bytes
    with suppress(OSError):
        return find_holders(found, _LOCKS.read_text())
    return []
