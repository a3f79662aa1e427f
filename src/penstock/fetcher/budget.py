"""Room on the disk: who may bring how many bytes where, and who has to go for it."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cachedir.folder import Folder
from penstock.cachedir.policy import Limit, fair_shares, shortage
from penstock.errors import CacheTooSmallError
from penstock.fetcher.disk import RESERVE_VARIABLE, measure_disk, parse_reserve
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
    from pathlib import Path

    from penstock.cachedir.ledger import Record
    from penstock.cachedir.lock import Stripes
    from penstock.fetcher.disk import Disk
    from penstock.wire.item import Item
    from penstock.wire.share import Share

_log = logging.getLogger("penstock.cache")
_NEARLY_FULL_BYTES = 8 << 30  # less than that above its reserve may be gone before the next plan comes


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that an item on its way holds."""

    directory: Path
    name: str
    num_bytes: int
    temporary_bytes: int


class Room:
    """The directories of all clients and the limits that bind them. Safe for threads."""

    def __init__(self, stripes: Stripes) -> None:
        self.num_evictions = 0
        self.evicted_bytes = 0
        self._lock = threading.RLock()
        self._stripes = stripes
        self._folders: dict[str, Folder] = {}
        self._groups: dict[Hashable, frozenset[str]] = {}
        self._limits: dict[Hashable, Limit] = {}
        self._too_full: set[Limit] = set()
        self._reserve = parse_reserve(os.environ.get(RESERVE_VARIABLE))
        self._full_disks: dict[int, Limit] = {}  # by device: what the caches on it may take, as long as it is so full
        self._has_news = False
        self._warned_disks: set[int] = set()
        self._notices: dict[str, str] = {}

    # --- Who is bound by what -------------------------------------------------------------------------------

    def open(self, group: Hashable, directories: Sequence[Path], limit_bytes: int | None) -> list[str]:
        """Add a group of directories and give warnings about limits of others that bind them too."""
        warnings: list[str] = []
        with self._lock:
            for directory in directories:
                if str(directory) not in self._folders:
                    folder = self._folders[str(directory)] = Folder(directory, self._stripes)
                    folder.sweep()
            names = self._groups[group] = frozenset(map(str, directories))
            for other in self._limits.values():
                shared = sorted(other.directories & names)
                if shared and (limit_bytes is None or other.num_bytes < limit_bytes):
                    warnings.append(
                        f"another dataset of this node limits {shared[0]} to {format_bytes(other.num_bytes)}:"
                        " the smaller limit holds while both are open"
                    )
            if limit_bytes is not None:
                self._limits[group] = Limit(limit_bytes, names)
                self._too_full.add(self._limits[group])
                self.trim()
        return warnings

    def close(self, group: Hashable) -> None:
        """Forget a group."""
        with self._lock:
            self._groups.pop(group, None)
            self._limits.pop(group, None)
            self._too_full &= set(self._limits.values())

    def close_folders(self) -> None:
        """Let go of what is open of the directories."""
        with self._lock:
            for folder in self._folders.values():
                folder.ledger.close()

    def trim(self) -> frozenset[str]:
        """Evict what is above a limit that came later, expected or not; give the directories where it is in use."""
        with self._lock:
            self._too_full = {limit for limit in self._too_full if not self._make_room(limit, 0, 0, is_urgent=True)}
            return frozenset().union(*(limit.directories for limit in self._too_full))

    def bound_with(self, directory: Path) -> frozenset[str]:
        """Give all directories that share a limit with this one, or a disk that is full."""
        with self._lock:
            limits = [*self._limits.values(), *self._full_disks.values()]
            shared = (limit.directories for limit in limits if str(directory) in limit.directories)
            return frozenset().union(*shared)

    def may_evict(self, directory: Path) -> bool:
        """Tell whether anything may have to go from a directory soon: it has a limit, or its disk is nearly full."""
        if self.bound_with(directory):
            return True
        disk = measure_disk(directory)
        return disk is not None and disk.free_bytes - self._reserve.of(disk.total_bytes) < _NEARLY_FULL_BYTES

    def shares(self, tight: Collection[str]) -> dict[Hashable, Share]:
        """Say what each group may keep open, given the directories in which somebody waits for room."""
        with self._lock:
            return fair_shares(self._groups, [*self._limits.values(), *self._full_disks.values()], tight)

    def has_news(self) -> bool:
        """Tell whether a disk has become full, or has room again, since this was last asked."""
        with self._lock:
            has_news, self._has_news = self._has_news, False
            return has_news

    def take_notice(self, directory: Path) -> str | None:
        """Give what the users of a directory should know, once."""
        with self._lock:
            return self._notices.pop(str(directory), None)

    def expect(self, directory: Path, ahead: Mapping[str, int]) -> None:
        """Say what will be used in a directory, in how many batches."""
        with self._lock:
            self._folders[str(directory)].shelf.expect(ahead)

    # --- Coming ---------------------------------------------------------------------------------------------

    def reserve(
        self, directory: Path, item: Item, *, keep_zip: bool, is_urgent: bool, insists: bool = False
    ) -> Reservation | None:
        """Make room for an item, evicting if need be, or give None if that is impossible now.

        What is urgent may pass the limit by what it needs only while it is unpacked. Who insists is let through to a
        disk without room for him: then it is for the disk to say so.
        """
        stays, temporary = item.raw_bytes, item.packed_bytes
        if keep_zip:
            stays, temporary = stays + temporary, 0
        with self._lock:
            folder = self._folders[str(directory)]
            limits = self._binding(directory)
            for limit in limits:
                self._check_possible(limit, item, stays)
            if not all(self._make_room(limit, stays, temporary, is_urgent=is_urgent) for limit in limits):
                return None
            if not self._spare_disk(directory, stays + temporary, is_urgent=is_urgent) and not insists:
                return None
            folder.reserved_bytes += stays
            folder.temporary_bytes += temporary
            return Reservation(directory, item.name, stays, temporary)

    def settle(self, reservation: Reservation, record: Record | None, *, hand_over: bool = False) -> None:
        """End a reservation: the files are there, or it failed (None) and the room is free again."""
        with self._lock:
            folder = self._folders[str(reservation.directory)]
            folder.reserved_bytes -= reservation.num_bytes
            folder.temporary_bytes -= reservation.temporary_bytes
            if record is not None:
                folder.add(record)
                if hand_over:
                    folder.hand_over(record.name)

    def found(self, directory: Path, name: str, record: Record | None, *, hand_over: bool) -> None:
        """Count a copy that was there already, if it is ours."""
        with self._lock:
            folder = self._folders[str(directory)]
            if record is not None and name not in folder.shelf:
                folder.add(record)
            if hand_over:
                folder.hand_over(name)

    def taken(self, directory: Path, names: Iterable[str]) -> None:
        """Note that a reader holds its own lock now."""
        with self._lock:
            for name in names:
                self._folders[str(directory)].taken(name)

    def folder(self, directory: Path) -> Folder:
        """Give a directory, for its ledger."""
        return self._folders[str(directory)]

    def evict(self, directory: Path, name: str) -> bool:
        """Delete a copy, unless it is in use."""
        with self._lock:
            return self._folders[str(directory)].evict(name)

    def evict_held(self, directory: Path, name: str) -> bool:
        """Delete a copy whose name the caller holds, unless it is in use."""
        with self._lock:
            return self._folders[str(directory)].evict_held(name)

    def describe(self, directory: Path) -> str:
        """Say what fills a directory and who holds it, for errors."""
        parts: list[str] = []
        sizes: dict[Path, int] = {}
        with self._lock:
            for limit in self._binding(directory):
                used = sum(self._stays(name) for name in limit.directories)
                count = sum(len(self._folders[name].shelf) for name in limit.directories)
                parts.append(f"of {format_bytes(limit.num_bytes)}, {count} shards take {format_bytes(used)}")
                for name in limit.directories:
                    folder = self._folders[name]
                    sizes |= {folder.directory / file: size for file, size in folder.shelf.sizes().items()}
        from penstock.cachedir.holders import who_holds  # needed only to explain an error

        who = who_holds(sizes)
        return f"{'; '.join(parts)}, all of it in use or pinned{f' ({who})' if who else ''}"

    def usage(self) -> dict[str, int]:
        """Give the bytes known in each directory, those on their way included."""
        with self._lock:
            return {name: self._stays(name) + folder.temporary_bytes for name, folder in self._folders.items()}

    # --- Going ----------------------------------------------------------------------------------------------

    def _binding(self, directory: Path) -> list[Limit]:
        return [limit for limit in self._limits.values() if str(directory) in limit.directories]

    def _check_possible(self, limit: Limit, item: Item, stays: int) -> None:
        if stays > limit.num_bytes:
            raise CacheTooSmallError(
                f"{item.name} takes {format_bytes(stays)}, but the cache limit is {format_bytes(limit.num_bytes)}:"
                " raise cache_limit",
                needed=stays,
                limit=limit.num_bytes,
            )

    def _make_room(self, limit: Limit, stays: int, temporary: int, *, is_urgent: bool) -> bool:
        tried: dict[str, set[str]] = {name: set() for name in limit.directories}
        for name in limit.directories:
            if not self._folders[name].is_scanned:
                self._folders[name].scan()
        while True:
            used = {name: self._stays(name) for name in limit.directories}
            wanted = stays
            if not is_urgent:
                wanted += temporary + sum(self._folders[name].temporary_bytes for name in limit.directories)
            if not shortage(limit, used, wanted):
                return True
            if not self._evict_one(limit, tried, is_urgent=is_urgent):
                return False

    def _evict_one(self, limit: Limit, tried: dict[str, set[str]], *, is_urgent: bool) -> bool:
        """Evict the first of all directories that can go; entries found gone have made room too."""
        while True:
            before = sum(self._stays(name) for name in limit.directories)
            best = None
            for directory in limit.directories:
                folder = self._folders[directory]
                found = folder.shelf.next_victim(folder.last_use, is_urgent=is_urgent, tried=tried[directory])
                if found is not None and (best is None or found[0] < best[0]):
                    best = (*found, directory)
            if sum(self._stays(name) for name in limit.directories) < before:
                return True
            if best is None:
                return False
            _, name, directory = best
            folder = self._folders[directory]
            used = folder.shelf.used_bytes
            if folder.evict(name):
                self.num_evictions += 1
                self.evicted_bytes += used - folder.shelf.used_bytes
                return True
            tried[directory].add(name)
            folder.shelf.touch(name, time.time())

    # --- The disk -------------------------------------------------------------------------------------------

    def _spare_disk(self, directory: Path, num_bytes: int, *, is_urgent: bool) -> bool:
        """Tell whether so much may come to a directory's disk, after evicting if need be.

        Idle shards go before the disk's reserve is touched. Only who is urgent gets that, and then the room of what is
        expected. Bytes on their way may be counted twice, here and by the disk: it is full a little earlier then.
        """
        disk = measure_disk(directory)
        if disk is None:
            return True
        coming = sum(folder.reserved_bytes + folder.temporary_bytes for folder in self._folders.values())
        reserve = self._reserve.of(disk.total_bytes)
        if disk.free_bytes - coming - num_bytes >= reserve:
            if disk.device in self._full_disks and disk.free_bytes >= 2 * (reserve + num_bytes):
                del self._full_disks[disk.device]
                self._has_news = True
            return True
        names = self._on_disk(disk)
        self._note_full(directory, disk, self._ceiling(names, disk.free_bytes - reserve))
        if self._make_room(self._ceiling(names, disk.free_bytes - reserve), num_bytes, 0, is_urgent=False):
            return True
        now = measure_disk(directory)
        return (
            is_urgent
            and now is not None
            and self._make_room(self._ceiling(names, now.free_bytes), num_bytes, 0, is_urgent=True)
        )

    def _on_disk(self, disk: Disk) -> frozenset[str]:
        """Give the directories that lie on a disk, with all that is in them counted."""
        names = set()
        for name, folder in self._folders.items():
            found = measure_disk(folder.directory)
            if found is not None and found.device == disk.device:
                names.add(name)
                if not folder.is_scanned:
                    folder.scan()
        return frozenset(names)

    def _ceiling(self, names: frozenset[str], free_bytes: int) -> Limit:
        """Give what directories may take if they may fill so much more."""
        used = sum(self._folders[name].shelf.used_bytes for name in names)
        return Limit(max(0, used + free_bytes), names)

    def _note_full(self, directory: Path, disk: Disk, ceiling: Limit) -> None:
        self._full_disks[disk.device] = ceiling
        self._has_news = True
        if disk.device not in self._warned_disks:
            self._warned_disks.add(disk.device)
            left = format_bytes(self._reserve.of(disk.total_bytes))
            text = (
                f"the disk of {directory} is nearly full ({format_bytes(disk.free_bytes)} free): what nobody needs now"
                f" is removed from the caches on it, to leave {left} to others. Set a cache_limit that leaves room, or"
                f" {RESERVE_VARIABLE} to leave more or less"
            )
            _log.warning("%s", text)
            self._notices[str(directory)] = text

    def _stays(self, name: str) -> int:
        folder = self._folders[name]
        return folder.shelf.used_bytes + folder.reserved_bytes
