"""Room on the disks, which is made by what the budget decides.

Two kinds of locks, so that a slow disk holds up only those who need it. The books, of the budget and of the scheduler,
are guarded by one short lock, which is never held during IO. Each directory has a lock of its own besides,
held while it is scanned or evicted from. It is taken before the books, never after.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cachedir.folder import Folder
from penstock.cachedir.ledger import Flusher
from penstock.errors import ConfigError
from penstock.fetcher.budget import Budget, Disk, Limit, Reservation, Shelf, Step, check_possible
from penstock.index.paths import INDEX_NAME
from penstock.outside_text import ASCII, Bounded
from penstock.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
    from pathlib import Path

    from penstock.cachedir.ledger import Record
    from penstock.cachedir.lock import Stripes
    from penstock.wire.item import Item

_log = logging.getLogger("penstock.cache")
RESERVE_VARIABLE = "PENSTOCK_DISK_RESERVE"
_SHARE_OF_COPIES = 2
# Of a large disk a few per cent are more than is needed to stay clear of trouble.
_DEFAULT_PART = 0.03
_DEFAULT_MOST_BYTES = 10 << 30
_PERCENT = Bounded(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", 64, ASCII)


class Rooms:
    """The directories of all clients. Safe for threads."""

    def __init__(self, stripes: Stripes) -> None:
        self.num_evictions = 0
        self.evicted_bytes = 0
        self._flusher = Flusher()
        self.books = threading.RLock()  # the collector may close a cache, and with it its group, at any time
        self.budget = Budget()
        self._stripes = stripes
        self.folders: dict[str, Folder] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._scanned: set[str] = set()
        self._reserve = parse_reserve(os.environ.get(RESERVE_VARIABLE))
        self._warned_disks: set[int] = set()
        self._notices: dict[str, str] = {}

    # --- Directories ----------------------------------------------------------------------------------------

    def open(
        self, group: Hashable, directories: Sequence[Path], limit_bytes: int | None, copies: Collection[Path] = ()
    ) -> list[str]:
        """Add a group of directories and return warnings about limits of others that bind them too.

        Those that hold `copies` of files of this machine are limited by a share of the disk if no limit is given.
        """
        for directory in directories:
            self._open_folder(directory)
        names = frozenset(map(str, directories))
        limit = self._share_of_disk(copies) if limit_bytes is None else Limit(limit_bytes, names)
        with self.books:
            warnings = self.budget.open(group, names, limit, is_given=limit_bytes is not None)
        if limit is not None:
            with self.holding(limit.directories):
                self._trim(limit)
        return warnings

    def _open_folder(self, directory: Path) -> None:
        """Add a directory; what killed fetchers left there unfinished is removed."""
        name = str(directory)
        with self.books:
            is_known = name in self.folders
            if not is_known:
                self.folders[name], self._locks[name] = Folder(directory, self._stripes), threading.Lock()
                self.budget.shelves[name] = Shelf()
        if not is_known:
            with self.holding([name]):
                self.folders[name].sweep()

    def _share_of_disk(self, copies: Collection[Path]) -> Limit | None:
        """Return what copies may take: half of what is free, and of what they take now."""
        names, disk = frozenset(map(str, copies)), measure_disk(min(copies)) if copies else None
        if disk is None:
            return None
        with self.holding(names):
            return Limit(max(1, self._ceiling(names, disk.free_bytes).num_bytes // _SHARE_OF_COPIES), names)

    def close(self) -> None:
        """Let go of what is open of the directories."""
        self._flusher.close()
        for folder in list(self.folders.values()):
            folder.ledger.close()

    @contextmanager
    def holding(self, names: Collection[str], *, wait: bool = True) -> Iterator[bool]:
        """Have directories to oneself, to scan them or to evict from them. While some are held no others are taken.

        Gives True if that is so: without `wait`, it is not if any of them is held already.
        """
        with ExitStack() as stack:
            for name in sorted(names):  # always in the same order, so that no two wait for each other
                if not self._locks[name].acquire(blocking=wait):
                    yield False
                    return
                stack.callback(self._locks[name].release)
            yield True

    def trim(self) -> frozenset[str]:
        """Evict what is above a limit that came later, expected or not; return the directories where it is in use.

        A directory that is held now is not waited for: it is trimmed the next time.
        """
        with self.books:
            too_full = list(self.budget.too_full)
        for limit in too_full:
            with self.holding(limit.directories, wait=False) as is_held:
                if is_held:
                    self._trim(limit)
        with self.books:
            return frozenset().union(*(limit.directories for limit in self.budget.too_full))

    def _trim(self, limit: Limit) -> None:
        if self._make_room(limit, 0, 0, is_urgent=True):
            with self.books:
                self.budget.too_full.discard(limit)

    def may_evict(self, directory: Path) -> bool:
        """Return True if anything may have to go from a directory soon: it has a limit, or its disk is nearly full."""
        disk = measure_disk(directory)
        with self.books:
            return self.budget.may_evict(str(directory), disk, self._left_free(disk))

    def take_notice(self, directory: Path) -> str | None:
        """Return what the users of a directory should know, once."""
        with self.books:
            return self._notices.pop(str(directory), None)

    # --- Coming ---------------------------------------------------------------------------------------------

    def reserve(self, wanted: Reservation, *, is_urgent: bool, fail_if_disk_full: bool = False) -> Reservation | None:
        """Make room for an item, evicting if need be, or return None if that is impossible now.

        What is urgent may pass the limit by what it needs only while it is unpacked. With `fail_if_disk_full` it is let
        through to a disk without room for it: then it is for the disk to say so.
        """
        directory = self.folders[wanted.directory].directory
        with self.books:
            limits = self.budget.limits_of(wanted.directory)
            for limit in limits:
                check_possible(limit, wanted.name, wanted.num_bytes, self.budget.index_bytes(limit))
        names = frozenset({wanted.directory}).union(*(limit.directories for limit in limits))
        with self.holding(names):
            if not self._fits_limits(wanted, limits, is_urgent=is_urgent):
                return None
            disk = measure_disk(directory)
            if self._take_if_disk_fits(wanted, disk) or disk is None:
                return wanted
            on_disk = self._on_disk(disk)
        with self.holding(names | on_disk):
            if not self._fits_limits(wanted, limits, is_urgent=is_urgent):
                return None
            if self._spare_disk(directory, wanted, on_disk, is_urgent=is_urgent) or fail_if_disk_full:
                with self.books:
                    return self.budget.take(wanted)
            return None

    def reserve_unused(self, directory: Path, item: Item) -> Reservation | None:
        """Take room for an item that is not waited for, if nothing has to go for it."""
        wanted = Reservation(str(directory), item.name, item.raw_bytes, item.packed_bytes)
        with self.books:
            limits = self.budget.limits_of(wanted.directory)
        names = frozenset({wanted.directory}).union(*(limit.directories for limit in limits))
        with self.holding(names):
            self._scan(names)
            with self.books:
                fits = self.budget.fits_unused(wanted)
            return wanted if fits and self._take_if_disk_fits(wanted, measure_disk(directory)) else None

    def claim(self, reservation: Reservation, record: Record | None, *, hand_over: bool = False) -> None:
        """End a reservation: files that have come take its room, or (None) it failed and the room is free again."""
        name, num_bytes = (None, 0) if record is None else (record.name, record.num_bytes)
        if record is not None and record.boot is not None:
            folder = self.folders[reservation.directory]
            self._flusher.add(folder.directory, record, folder.ledger)
        with self.books:
            self.budget.claim(reservation, name, num_bytes, time.time())
            if hand_over and name is not None:
                self.budget.hand_over(reservation.directory, name, time.monotonic())

    def note_index(self, directory: Path) -> None:
        """Count the index that was brought to a directory, and raise if a limit has no room for it."""
        ledger = self.folders[str(directory)].ledger
        index = ledger.get(INDEX_NAME)
        with self.books:
            self.budget.shelves[str(directory)].index_bytes = 0 if index is None else index.num_bytes
            if not self.budget.limits_of(str(directory)):
                ledger.close()  # it is seldom asked again: a process may have hundreds of caches
            for limit in self.budget.limits_of(str(directory)):
                check_possible(limit, "the index", self.budget.index_bytes(limit))

    def found(self, directory: Path, name: str, record: Record | None, *, hand_over: bool) -> None:
        """Count a copy that was there already, if it is ours."""
        with self.books:
            order = self.budget.shelves[str(directory)].order
            if record is not None and name not in order:
                order.put(name, record.num_bytes, time.time())
            if hand_over:
                self.budget.hand_over(str(directory), name, time.monotonic())

    def describe(self, directory: Path) -> str:
        """Describe what fills a directory and who holds it, for errors."""
        parts: list[str] = []
        sizes: dict[Path, int] = {}
        with self.books:
            for limit in self.budget.limits_of(str(directory)):
                shelves = {name: self.budget.shelves[name] for name in limit.directories}
                used = sum(shelf.stays_bytes for shelf in shelves.values())
                count = sum(len(shelf.order) for shelf in shelves.values())
                parts.append(
                    f"the index and {count} shards take {format_bytes(used)} of {format_bytes(limit.num_bytes)}"
                )
                for name, shelf in shelves.items():
                    sizes |= {self.folders[name].directory / file: size for file, size in shelf.order.sizes().items()}
        from penstock.cachedir.lock import who_holds  # needed only to explain an error

        who = who_holds(sizes)
        return f"{'; '.join(parts)}, all in use or pinned{f' ({who})' if who else ''}"

    # --- Going (with the directories held) ------------------------------------------------------------------

    def evict(self, directory: Path, name: str, *, is_held: bool = False) -> bool:
        """Delete a copy, unless it is in use; the caller may hold its name already."""
        with self.holding([str(directory)]):
            return self._evict(str(directory), name, is_held=is_held) is not None

    def _evict(self, directory: str, name: str, *, is_held: bool = False) -> int | None:
        """Delete a copy and return its size; None: it is in use."""
        folder = self.folders[directory]
        with self.books:
            if not is_held and self.budget.is_handed_over(directory, name, time.monotonic()):
                return None
        if not (folder.evict_held(name) if is_held else folder.evict(name)):
            return None
        with self.books:
            return self.budget.evicted(directory, name)

    def _fits_limits(self, wanted: Reservation, limits: Iterable[Limit], *, is_urgent: bool) -> bool:
        return all(
            self._make_room(limit, wanted.num_bytes, wanted.temporary_bytes, is_urgent=is_urgent) for limit in limits
        )

    def _make_room(self, limit: Limit, stays: int, temporary: int, *, is_urgent: bool) -> bool:
        """Evict until so many bytes more fit, and return True if they do."""
        tried: dict[str, set[str]] = {name: set() for name in limit.directories}
        self._scan(limit.directories)
        while True:
            with self.books:
                step = self.budget.next_step(limit, stays, temporary, is_urgent=is_urgent, tried=tried)
            if isinstance(step, Step):
                return step is Step.FITS
            order = self.budget.shelves[step.directory].order
            used_at = self.folders[step.directory].last_use(step.name)
            with self.books:
                may_go = order.looked(step.rank, step.name, used_at)
            if not may_go:
                continue
            num_bytes = self._evict(step.directory, step.name)
            if num_bytes is not None:
                self.num_evictions += 1
                self.evicted_bytes += num_bytes
            else:
                tried[step.directory].add(step.name)
                with self.books:
                    order.touch(step.name, time.time())

    def _scan(self, names: Iterable[str]) -> None:
        """Count what is in directories, the first time that it matters."""
        for name in names:
            if name not in self._scanned:
                self._scanned.add(name)
                found = self.folders[name].scan()
                with self.books:
                    order = self.budget.shelves[name].order
                    for record, used_at in found:
                        if record.name not in order:
                            order.put(record.name, record.num_bytes, used_at)

    # --- The disk -------------------------------------------------------------------------------------------

    def _left_free(self, disk: Disk | None) -> int:
        return 0 if disk is None else self._reserve.of(disk.total_bytes)

    def _take_if_disk_fits(self, wanted: Reservation, disk: Disk | None) -> bool:
        """Take room if the disk has it besides its reserve, or does not say how much it has."""
        with self.books:
            fits = disk is None or self.budget.fits_disk(wanted, disk, self._left_free(disk))
            if fits:
                self.budget.take(wanted)
            return fits

    def _spare_disk(self, directory: Path, wanted: Reservation, names: frozenset[str], *, is_urgent: bool) -> bool:
        """Return True if an item may come to its disk, after evicting from all directories on it.

        Idle shards go before the disk's reserve is touched. Only what is urgent gets that, and then the room of what is
        expected.
        """
        disk = measure_disk(directory)
        if disk is None:
            return True
        ceiling = self._ceiling(names, disk.free_bytes - self._left_free(disk))
        self._note_full(directory, disk, ceiling)
        if self._make_room(ceiling, wanted.all_bytes, 0, is_urgent=False):
            return True
        now = measure_disk(directory)
        if now is None or not is_urgent:
            return False
        return self._make_room(self._ceiling(names, now.free_bytes), wanted.all_bytes, 0, is_urgent=True)

    def _on_disk(self, disk: Disk) -> frozenset[str]:
        """Return the directories that lie on a disk."""
        found = {name: measure_disk(folder.directory) for name, folder in list(self.folders.items())}
        return frozenset(name for name, of in found.items() if of is not None and of.device == disk.device)

    def _ceiling(self, names: frozenset[str], free_bytes: int) -> Limit:
        self._scan(names)
        with self.books:
            return self.budget.ceiling(names, free_bytes)

    def _note_full(self, directory: Path, disk: Disk, ceiling: Limit) -> None:
        with self.books:
            self.budget.note_full(disk, ceiling)
            is_new = disk.device not in self._warned_disks
            self._warned_disks.add(disk.device)
        if is_new:
            text = (
                f"the disk of {directory} is nearly full ({format_bytes(disk.free_bytes)} free), so penstock removes"
                f" shards that are not in use from the caches on it, to leave {format_bytes(self._left_free(disk))} for"
                f" others. Set a cache_limit that leaves enough room, or set {RESERVE_VARIABLE} to leave more or less"
            )
            _log.warning("%s", text)
            with self.books:
                self._notices[str(directory)] = text


@dataclass(frozen=True, slots=True)
class Reserve:
    """What caches leave free of a disk: a part of it, a number of bytes, or the smaller of both."""

    part: float = 1.0
    most_bytes: int | None = None

    def of(self, total_bytes: int) -> int:
        """Return the bytes to leave free of a disk of this size."""
        num_bytes = int(self.part * total_bytes)
        return num_bytes if self.most_bytes is None else min(num_bytes, self.most_bytes)


def parse_reserve(text: str | None) -> Reserve:
    """Read a setting such as "5gb" or "3%"; nothing means the default."""
    if not text:
        return Reserve(_DEFAULT_PART, _DEFAULT_MOST_BYTES)
    percent = _PERCENT.fullmatch(text)
    try:
        if percent is None:
            return Reserve(most_bytes=parse_bytes(text))
    except ConfigError as error:
        raise ConfigError(f"{RESERVE_VARIABLE}: {error}, or a share of the disk, like '3%'") from error
    if float(percent[1]) > 100:
        raise ConfigError(f"{RESERVE_VARIABLE}: {text!r} is more than the whole disk")
    return Reserve(float(percent[1]) / 100)


def measure_disk(directory: Path) -> Disk | None:
    """Look at the file system that a directory is on, or will be on; None if it does not say how large it is."""
    for folder in (directory, *directory.parents):
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            space = os.statvfs(folder)
            if not space.f_blocks:
                return None
            return Disk(folder.stat().st_dev, space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize)
    return None
