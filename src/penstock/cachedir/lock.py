"""Locks of the operating system, which the kernel frees when their holder dies, and who holds them.

Every lock on a file is taken here: at once or not at all, or in attempts that end by themselves. A lock file is never
deleted: a process that waits for it would be alone with it, while the next one to come locks another file of that name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.cachedir.layout import control_folder, stripe_name, stripe_of
from penstock.errors import CacheError, LockTimeoutError
from penstock.files import make_folders
from penstock.processes import abandon_in_children
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

T = TypeVar("T")
File = tuple[int, int]  # device and inode

_NOT_ON_THIS_DISK = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_LONGEST_PAUSE_S = 0.2
_ANY_TRIES = 16
_KERNEL_LOCKS = Path("/proc/locks")  # Linux alone tells
_MOST_NAMED = 8
_TRY_SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB
_TRY_ALONE = fcntl.LOCK_EX | fcntl.LOCK_NB
# No link is followed, and nothing that is not a file is waited for.
_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Descriptor:
    """An open file whose lock lasts until it is closed, here or by the death of the process.

    Closing is the only way to unlock: LOCK_UN in a forked child would free the lock of its parent.
    """

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number  # -1 once closed
        abandon_in_children(self)

    def close(self) -> None:
        """Close, and unlock by it. Closing again does nothing."""
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    after_fork_in_child = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()


def open_locked(path: Path | str, flags: int = _READING, *, is_shared: bool = False) -> Descriptor | None:
    """Open a file and lock it at once, alone or with others who share it; None: another lock is in the way."""
    descriptor = Descriptor(os.open(path, flags, 0o600))
    try:
        fcntl.flock(descriptor.number, _TRY_SHARED if is_shared else _TRY_ALONE)
    except OSError as error:
        descriptor.close()
        if isinstance(error, BlockingIOError):
            return None
        if error.errno in _NOT_ON_THIS_DISK:
            raise CacheError(
                f"cannot lock {path} ({error.strerror}): put the cache folder on a local disk, not on a network one",
                path=str(path),
            ) from error
        raise
    return descriptor


def is_still_at(path: Path | str, status: os.stat_result) -> bool:
    """Return whether a file that was opened still has its name: it may have been deleted or replaced meanwhile."""
    try:
        now = os.lstat(path)
    except OSError:
        return False
    return now.st_ino == status.st_ino and now.st_dev == status.st_dev


def try_hold_file(path: Path, flags: int, *, is_shared: bool = False) -> Descriptor | None:
    """Open a file in some way and lock it at once, or give None if another lock is in the way.

    A lock counts only if its file still has its name: it may have been replaced, or its folder deleted and made anew.
    """
    holder = open_locked(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, is_shared=is_shared)
    if holder is None or is_still_at(path, os.fstat(holder.number)):
        return holder
    holder.close()
    return None


def try_hold(path: Path) -> Descriptor | None:
    """Hold a lock file alone, creating it if need be, or give None if another process does."""
    with suppress(FileNotFoundError):
        return try_hold_file(path, os.O_RDWR | os.O_CREAT)
    make_folders(path.parent.parent)
    make_folders(path.parent, 0o700)
    return try_hold_file(path, os.O_RDWR | os.O_CREAT)


def lock_within(path: Path, timeout_s: float) -> Descriptor:
    """Create a lock file if need be and hold it alone, waiting for other processes at most so long."""
    return wait_for_lock(lambda: try_hold(path), path, timeout_s)


def wait_for_lock(
    attempt: Callable[[], T | None],
    path: Path,
    timeout_s: float,
    should_stop: Callable[[], bool] = lambda: False,
    pause: Callable[[float], object] = time.sleep,
) -> T:
    """Try to take a lock again and again; another process that has it for too long is an error that says so."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.005
    while True:
        taken = attempt()
        if taken is not None:
            return taken
        if time.monotonic() >= deadline or should_stop():
            raise LockTimeoutError(
                f"another process has held {path} for more than {timeout_s:g} s: see what it is doing, or end it",
                path=str(path),
            )
        pause(pause_s)  # the kernel offers no wait for a lock that ends by itself
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


# --- Stripes ------------------------------------------------------------------------------------------------


class Held(NamedTuple):
    """A name that this thread may write about, and the stripe that keeps other processes from it; `with` leaves it."""

    stripes: Stripes
    directory: Path
    name: str
    stripe: Path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stripes.leave(self)


class Stripes:
    """Who may write about which name of a directory: one thread of one process at a time.

    Processes exclude each other by lock files, each for a fixed part of all names, which the threads of one process
    share; threads exclude each other by name.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._names: set[tuple[Path, str]] = set()
        self._stripes: dict[Path, tuple[Descriptor, int]] = {}

    def take(
        self, directory: Path, name: str, timeout_s: float, *, should_stop: Callable[[], bool] = lambda: False
    ) -> Held:
        """Hold a name, waiting for the process or thread that has it; give what to `leave` it by."""
        path = control_folder(directory) / stripe_name(stripe_of(name))

        def attempt() -> Held | None:
            if (directory, name) in self._names or self._try_stripe(path) is None:
                return None
            self._names.add((directory, name))
            return Held(self, directory, name, path)

        with self._changed:  # threads of this process wake us, other processes do not
            return wait_for_lock(attempt, path, timeout_s, should_stop, self._changed.wait)

    def try_take(self, directory: Path, name: str) -> Held | None:
        """Hold a name if it is free."""
        try:
            return self.take(directory, name, 0.0)
        except LockTimeoutError:
            return None

    def try_take_any(self, directory: Path, other_than: str) -> Held | None:
        """Hold a new name of a free stripe: as long as one is held, the folder of locks is not removed.

        It is not in the stripe of `other_than`, for which others may wait.
        """
        names = [f"{other_than}.{secrets.token_hex(4)}" for _ in range(_ANY_TRIES)]
        different = [name for name in names if stripe_of(name) != stripe_of(other_than)]
        return next((held for name in different if (held := self.try_take(directory, name)) is not None), None)

    def leave(self, held: Held) -> None:
        """Release what was taken; the last of this process unlocks the stripe."""
        self.leave_stripe(held.stripe)
        with self._changed:
            self._names.discard((held.directory, held.name))
            self._changed.notify_all()

    def try_stripe(self, directory: Path, stripe: int) -> Path | None:
        """Hold a stripe alone, not sharing it with other threads, if it is free."""
        path = control_folder(directory) / stripe_name(stripe)
        with self._changed:
            return None if path in self._stripes else self._try_stripe(path)

    def leave_stripe(self, path: Path) -> None:
        """Release a stripe."""
        with self._changed:
            holder, count = self._stripes[path]
            if count > 1:
                self._stripes[path] = holder, count - 1
                return
            del self._stripes[path]
        holder.close()

    def _try_stripe(self, path: Path) -> Path | None:
        old, count = self._stripes.get(path, (None, 0))
        if old is None or not is_still_at(path, os.fstat(old.number)):
            holder = try_hold(path)
            if holder is None:
                return None
            if old is not None:
                old.close()
            old = holder
        self._stripes[path] = old, count + 1
        return path


# --- Who holds locks, as the kernel knows -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, and what it holds."""

    pid: int
    num_files: int
    num_bytes: int


def find_holders(sizes: Mapping[File, int], locks: str) -> list[Holder]:
    """Return who holds which of some files, given the kernel's list of locks; who holds most comes first."""
    held: set[tuple[int, File]] = set()
    for line in locks.splitlines():
        # 12: FLOCK  ADVISORY  READ 4711 08:01:1234567 0 EOF
        _, kind, _, access, pid, place, *_ = [*line.split(), *[""] * 6]
        if (kind, access) == ("FLOCK", "READ"):
            major, minor, inode = place.split(":")
            held.add((int(pid), (os.makedev(int(major, 16), int(minor, 16)), int(inode))))
    if not any(file in sizes for _, file in held):
        # Some file systems (Btrfs, overlays) show another device number here than in `stat`.
        by_inode = {inode: (device, inode) for device, inode in sizes}
        held = {(pid, by_inode[node]) for pid, (_, node) in held if node in by_inode}
    files, num_bytes = Counter[int](), Counter[int]()
    for holder, file in held:
        if file in sizes:
            files[holder] += 1
            num_bytes[holder] += sizes[file]
    holders = [Holder(number, files[number], num_bytes[number]) for number in files]
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
        return find_holders(found, _KERNEL_LOCKS.read_text())
    return []
