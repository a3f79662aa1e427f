"""Room on the disk: who may bring how many bytes where, and who has to go for it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cache.folder import Folder
from penstock.cache.policy import Limit, shortage
from penstock.errors import CacheTooSmallError
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence
    from pathlib import Path

    from penstock.cache.item import Item
    from penstock.cache.ledger import Record
    from penstock.cache.lock import Stripes


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
        self._limits: dict[Hashable, Limit] = {}

    # --- Who is bound by what -------------------------------------------------------------------------------

    def open(self, group: Hashable, directories: Sequence[Path], limit_bytes: int | None) -> list[str]:
        """Add a group of directories and give warnings about limits of others that bind them too."""
        warnings: list[str] = []
        with self._lock:
            for directory in directories:
                if str(directory) not in self._folders:
                    folder = self._folders[str(directory)] = Folder(directory, self._stripes)
                    folder.sweep()
            names = frozenset(map(str, directories))
            for other in self._limits.values():
                shared = sorted(other.directories & names)
                if shared and (limit_bytes is None or other.num_bytes < limit_bytes):
                    warnings.append(
                        f"another dataset of this node limits {shared[0]} to {format_bytes(other.num_bytes)}:"
                        " the smaller limit holds while both are open"
                    )
            if limit_bytes is not None:
                self._limits[group] = Limit(limit_bytes, names)
                self._trim(self._limits[group])
        return warnings

    def close(self, group: Hashable) -> None:
        """Forget a group."""
        with self._lock:
            self._limits.pop(group, None)

    def bound_with(self, directory: Path) -> frozenset[str]:
        """Give all directories that share a limit with this one."""
        with self._lock:
            shared = (limit.directories for limit in self._binding(directory))
            return frozenset().union(*shared)

    def expect(self, directory: Path, ahead: Mapping[str, int]) -> None:
        """Say what will be used in a directory, in how many batches."""
        with self._lock:
            self._folders[str(directory)].shelf.expect(ahead)

    # --- Coming ---------------------------------------------------------------------------------------------

    def reserve(self, directory: Path, item: Item, *, keep_zip: bool, is_urgent: bool) -> Reservation | None:
        """Make room for an item, evicting if need be, or give None if that is impossible now.

        What is urgent may pass the limit by what it needs only while it is unpacked.
        """
        stays, temporary = item.raw_bytes, item.packed_bytes
        if keep_zip:
            stays, temporary = stays + temporary, 0
        with self._lock:
            folder = self._folders[str(directory)]
            for limit in self._binding(directory):
                self._check_possible(limit, item, stays)
                if not self._make_room(limit, stays, temporary, is_urgent=is_urgent):
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
        """Say what fills a directory, for errors."""
        with self._lock:
            parts = []
            for limit in self._binding(directory):
                used = sum(self._stays(name) for name in limit.directories)
                count = sum(len(self._folders[name].shelf) for name in limit.directories)
                parts.append(f"of {format_bytes(limit.num_bytes)}, {count} shards take {format_bytes(used)}")
            return "; ".join(parts)

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

    def _trim(self, limit: Limit) -> None:
        self._make_room(limit, 0, 0, is_urgent=False)

    def _stays(self, name: str) -> int:
        folder = self._folders[name]
        return folder.shelf.used_bytes + folder.reserved_bytes
