"""Room on the disk: who may bring how many bytes where, and who has to go for it.

The books of `Folders` guard what is kept here, too. Directories are held while anything is scanned or evicted.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cachedir.policy import Limit, check_possible, describe_conflicts, fair_shares, shortage
from penstock.fetcher.disk import RESERVE_VARIABLE, describe_full, measure_disk, parse_reserve
from penstock.fetcher.folders import Folders
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
    from pathlib import Path

    from penstock.cachedir.folder import Folder
    from penstock.cachedir.ledger import Record
    from penstock.cachedir.lock import Stripes
    from penstock.fetcher.disk import Disk
    from penstock.wire.item import Item
    from penstock.wire.share import Share

_log = logging.getLogger("penstock.cache")
_SHARE_OF_COPIES = 2
_NEARLY_FULL_BYTES = 8 << 30  # less than that above its reserve may be gone before the next plan comes


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that an item on its way holds."""

    directory: Path
    name: str
    num_bytes: int
    temporary_bytes: int


class DiskBudget:
    """The directories of all clients and the limits that bind them. Safe for threads."""

    def __init__(self, stripes: Stripes) -> None:
        self.num_evictions = 0
        self.evicted_bytes = 0
        self._folders = Folders(stripes)
        self._books = self._folders.books
        self._groups: dict[Hashable, frozenset[str]] = {}
        self._limits: dict[Hashable, Limit] = {}
        self._shares: set[Hashable] = set()  # groups whose limit nobody gave
        self._too_full: set[Limit] = set()
        self._reserve = parse_reserve(os.environ.get(RESERVE_VARIABLE))
        self._full_disks: dict[int, Limit] = {}  # by device: what the caches on it may take, as long as it is so full
        self._has_news = False
        self._warned_disks: set[int] = set()
        self._notices: dict[str, str] = {}

    # --- Who is bound by what -------------------------------------------------------------------------------

    def open(
        self, group: Hashable, directories: Sequence[Path], limit_bytes: int | None, copies: Collection[Path] = ()
    ) -> list[str]:
        """Add a group of directories and give warnings about limits of others that bind them too.

        Those that hold `copies` of files of this machine are limited by a share of the disk if nobody says otherwise.
        """
        names = frozenset(map(str, directories))
        for directory in directories:
            self._folders.open(directory)
        limit = self._share_of_disk(copies) if limit_bytes is None else Limit(limit_bytes, names)
        with self._books:
            given = [limit for other, limit in self._limits.items() if other not in self._shares]
            warnings = describe_conflicts(given, names, limit_bytes)
            self._groups[group] = names
            if limit is not None:
                self._limits[group] = limit
                self._too_full.add(limit)
                if limit_bytes is None:
                    self._shares.add(group)
        if limit is not None:
            with self._folders.holding(limit.directories):
                self._trim(limit)
        return warnings

    def _share_of_disk(self, copies: Collection[Path]) -> Limit | None:
        """Give what copies may take: half of what is free, and of what they take now."""
        names, disk = frozenset(map(str, copies)), measure_disk(min(copies)) if copies else None
        with self._folders.holding(names):
            used = sum(map(self._used, names))
        return None if disk is None else Limit(max(1, (disk.free_bytes + used) // _SHARE_OF_COPIES), names)

    def close(self, group: Hashable) -> None:
        """Forget a group."""
        with self._books:
            self._groups.pop(group, None)
            self._limits.pop(group, None)
            self._shares.discard(group)
            self._too_full &= set(self._limits.values())

    def close_folders(self) -> None:
        """Let go of what is open of the directories."""
        for folder in self._folders.all().values():
            folder.ledger.close()

    def trim(self) -> frozenset[str]:
        """Evict what is above a limit that came later, expected or not; give the directories where it is in use.

        Whoever holds such a directory now is not waited for: it is trimmed the next time.
        """
        with self._books:
            too_full = list(self._too_full)
        for limit in too_full:
            with self._folders.holding(limit.directories, wait=False) as is_held:
                if is_held:
                    self._trim(limit)
        with self._books:
            return frozenset().union(*(limit.directories for limit in self._too_full))

    def _trim(self, limit: Limit) -> None:
        if self._make_room(limit, 0, 0, is_urgent=True):
            with self._books:
                self._too_full.discard(limit)

    def bound_with(self, directory: Path) -> frozenset[str]:
        """Give all directories that share a limit with this one, or a disk that is full."""
        with self._books:
            limits = [*self._limits.values(), *self._full_disks.values()]
            shared = (limit.directories for limit in limits if str(directory) in limit.directories)
            return frozenset().union(*shared)

    def competitors(self) -> dict[str, frozenset[str]]:
        """Return the directories that share a limit, or a disk that is full, with each one, itself among them."""
        found: dict[str, frozenset[str]] = {}
        with self._books:
            kinds = {limit.directories for limit in (*self._limits.values(), *self._full_disks.values())}
        for directories in kinds:
            for name in directories:
                found[name] = directories if name not in found else directories | found[name]
        return found

    def may_evict(self, directory: Path) -> bool:
        """Tell whether anything may have to go from a directory soon: it has a limit, or its disk is nearly full."""
        if self.bound_with(directory):
            return True
        disk = measure_disk(directory)
        return disk is not None and disk.free_bytes - self._reserve.of(disk.total_bytes) < _NEARLY_FULL_BYTES

    def shares(self, tight: Collection[str]) -> dict[Hashable, Share]:
        """Say what each group may keep open, given the directories in which somebody waits for room."""
        with self._books:
            return fair_shares(self._groups, [*self._limits.values(), *self._full_disks.values()], tight)

    def has_news(self) -> bool:
        """Tell whether a disk has become full, or has room again, since this was last asked."""
        with self._books:
            has_news, self._has_news = self._has_news, False
            return has_news

    def take_notice(self, directory: Path) -> str | None:
        """Give what the users of a directory should know, once."""
        with self._books:
            return self._notices.pop(str(directory), None)

    def expect(self, directory: Path, ahead: Mapping[str, int]) -> None:
        """Say what will be used in a directory, in how many batches."""
        self._folders.expect(str(directory), ahead)

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
        wanted = Reservation(directory, item.name, stays, temporary)
        limits = self._binding(directory)
        for limit in limits:
            check_possible(limit, item.name, stays)
        names = frozenset({str(directory)}).union(*(limit.directories for limit in limits))
        with self._folders.holding(names):
            if not self._fits_limits(wanted, limits, is_urgent=is_urgent):
                return None
            if self._fits_disk(wanted):
                return wanted
        disk = measure_disk(directory)
        if disk is None:
            return self._note(wanted)
        on_disk = self._on_disk(disk)
        with self._folders.holding(names | on_disk):
            if not self._fits_limits(wanted, limits, is_urgent=is_urgent):
                return None
            if self._spare_disk(wanted, on_disk, is_urgent=is_urgent) or insists:
                return self._note(wanted)
            return None

    def reserve_unused(self, directory: Path, item: Item) -> Reservation | None:
        """Take room for an item that nobody waits for, if nothing has to go for it."""
        wanted, limits = Reservation(directory, item.name, item.raw_bytes, item.packed_bytes), self._binding(directory)
        names = frozenset({str(directory)}).union(*(limit.directories for limit in limits))
        with self._folders.holding(names):
            for name in names:
                self._used(name)
            used = self.usage()
            if any(shortage(limit, used, wanted.num_bytes + wanted.temporary_bytes) for limit in limits):
                return None
            return wanted if self._fits_disk(wanted) else None

    def _note(self, wanted: Reservation) -> Reservation:
        with self._books:
            folder = self.folder(wanted.directory)
            folder.reserved_bytes += wanted.num_bytes
            folder.temporary_bytes += wanted.temporary_bytes
        return wanted

    def settle(self, reservation: Reservation, record: Record | None, *, hand_over: bool = False) -> None:
        """End a reservation: the files are there, or it failed (None) and the room is free again."""
        with self._books:
            folder = self.folder(reservation.directory)
            folder.reserved_bytes -= reservation.num_bytes
            folder.temporary_bytes -= reservation.temporary_bytes
            if record is not None:
                self._folders.arrived(str(reservation.directory), record)
                if record.num_bytes > reservation.num_bytes:  # its size was only estimated
                    self._too_full |= set(self._binding(reservation.directory))
                if hand_over:
                    folder.hand_over(record.name)

    def found(self, directory: Path, name: str, record: Record | None, *, hand_over: bool) -> None:
        """Count a copy that was there already, if it is ours."""
        with self._books:
            folder = self.folder(directory)
            if record is not None and name not in folder.eviction_order:
                self._folders.arrived(str(directory), record)
            if hand_over:
                folder.hand_over(name)

    def taken(self, directory: Path, names: Iterable[str]) -> None:
        """Note that a reader holds its own lock now."""
        with self._books:
            for name in names:
                self.folder(directory).taken(name)

    def folder(self, directory: Path) -> Folder:
        """Give a directory, for its ledger."""
        return self._folders[str(directory)]

    def evict(self, directory: Path, name: str, *, is_held: bool = False) -> bool:
        """Delete a copy, unless it is in use; the caller may hold its name already."""
        folder = self.folder(directory)
        with self._folders.holding([str(directory)]):
            return folder.evict_held(name) if is_held else folder.evict(name)

    def describe(self, directory: Path) -> str:
        """Say what fills a directory and who holds it, for errors."""
        parts: list[str] = []
        sizes: dict[Path, int] = {}
        with self._books:
            for limit in self._binding(directory):
                used = self._folders.stays(limit.directories)
                count = sum(len(self._folders[name].eviction_order) for name in limit.directories)
                parts.append(f"{count} shards take {format_bytes(used)} of {format_bytes(limit.num_bytes)}")
                for name in limit.directories:
                    folder = self._folders[name]
                    sizes |= {folder.directory / file: size for file, size in folder.eviction_order.sizes().items()}
        from penstock.cachedir.holders import who_holds  # needed only to explain an error

        who = who_holds(sizes)
        return f"{'; '.join(parts)}, all in use or pinned{f' ({who})' if who else ''}"

    def usage(self) -> dict[str, int]:
        """Give the bytes known in each directory, those on their way included."""
        with self._books:
            folders = self._folders.all()
            return {name: self._folders.stays([name]) + folder.temporary_bytes for name, folder in folders.items()}

    # --- Going (with the directories held) ------------------------------------------------------------------

    def _binding(self, directory: Path) -> list[Limit]:
        with self._books:
            return [limit for limit in self._limits.values() if str(directory) in limit.directories]

    def _fits_limits(self, wanted: Reservation, limits: Iterable[Limit], *, is_urgent: bool) -> bool:
        return all(
            self._make_room(limit, wanted.num_bytes, wanted.temporary_bytes, is_urgent=is_urgent) for limit in limits
        )

    def _make_room(self, limit: Limit, stays: int, temporary: int, *, is_urgent: bool) -> bool:
        tried: dict[str, set[str]] = {name: set() for name in limit.directories}
        sum(map(self._used, limit.directories))  # all are scanned
        while True:
            with self._books:
                used = {name: self._folders.stays([name]) for name in limit.directories}
                wanted = stays
                if not is_urgent:
                    wanted += temporary + sum(self._folders[name].temporary_bytes for name in limit.directories)
            if not shortage(limit, used, wanted):
                return True
            if not self._evict_one(limit, tried, is_urgent=is_urgent):
                return False

    def _used(self, name: str) -> int:
        folder = self._folders[name]
        if not folder.is_scanned:
            folder.scan()
        return folder.eviction_order.used_bytes

    def _evict_one(self, limit: Limit, tried: dict[str, set[str]], *, is_urgent: bool) -> bool:
        """Evict the first of all directories that can go; entries found gone have made room too."""
        folders = {name: self._folders[name] for name in limit.directories}
        while True:
            before = sum(folder.eviction_order.used_bytes for folder in folders.values())
            best = None
            for directory, folder in folders.items():
                found = folder.eviction_order.next_victim(folder.last_use, is_urgent=is_urgent, tried=tried[directory])
                if found is not None and (best is None or found[0] < best[0]):
                    best = (*found, directory)
            if sum(folder.eviction_order.used_bytes for folder in folders.values()) < before:
                return True
            if best is None:
                return False
            _, name, directory = best
            folder = folders[directory]
            used = folder.eviction_order.used_bytes
            if folder.evict(name):
                with self._books:
                    self.num_evictions += 1
                    self.evicted_bytes += used - folder.eviction_order.used_bytes
                return True
            tried[directory].add(name)
            folder.eviction_order.touch(name, time.time())

    # --- The disk -------------------------------------------------------------------------------------------

    def _fits_disk(self, wanted: Reservation) -> bool:
        """Take room if the disk has it besides its reserve.

        Bytes on their way may be counted twice, here and by the disk: it is full a little earlier then.
        """
        disk = measure_disk(wanted.directory)
        if disk is None:
            self._note(wanted)
            return True
        num_bytes, reserve = wanted.num_bytes + wanted.temporary_bytes, self._reserve.of(disk.total_bytes)
        with self._books:
            folders = self._folders.all().values()
            coming = sum(folder.reserved_bytes + folder.temporary_bytes for folder in folders)
            if disk.free_bytes - coming - num_bytes < reserve:
                return False
            if disk.device in self._full_disks and disk.free_bytes >= 2 * (reserve + num_bytes):
                del self._full_disks[disk.device]
                self._has_news = True
            self._note(wanted)
            return True

    def _spare_disk(self, wanted: Reservation, names: frozenset[str], *, is_urgent: bool) -> bool:
        """Tell whether an item may come to its disk, after evicting from all directories on it.

        Idle shards go before the disk's reserve is touched. Only who is urgent gets that, and then the room of what is
        expected.
        """
        disk = measure_disk(wanted.directory)
        if disk is None:
            return True
        for name in names:
            self._used(name)
        num_bytes, reserve = wanted.num_bytes + wanted.temporary_bytes, self._reserve.of(disk.total_bytes)
        self._note_full(wanted.directory, disk, self._ceiling(names, disk.free_bytes - reserve))
        if self._make_room(self._ceiling(names, disk.free_bytes - reserve), num_bytes, 0, is_urgent=False):
            return True
        now = measure_disk(wanted.directory)
        return (
            is_urgent
            and now is not None
            and self._make_room(self._ceiling(names, now.free_bytes), num_bytes, 0, is_urgent=True)
        )

    def _on_disk(self, disk: Disk) -> frozenset[str]:
        """Give the directories that lie on a disk."""
        found = {name: measure_disk(folder.directory) for name, folder in self._folders.all().items()}
        return frozenset(name for name, of in found.items() if of is not None and of.device == disk.device)

    def _ceiling(self, names: frozenset[str], free_bytes: int) -> Limit:
        """Give what directories may take if they may fill so much more."""
        return Limit(max(0, sum(map(self._used, names)) + free_bytes), names)

    def _note_full(self, directory: Path, disk: Disk, ceiling: Limit) -> None:
        with self._books:
            self._full_disks[disk.device] = ceiling
            self._has_news = True
            is_new = disk.device not in self._warned_disks
            self._warned_disks.add(disk.device)
        if is_new:
            text = describe_full(directory, disk, self._reserve.of(disk.total_bytes))
            _log.warning("%s", text)
            with self._books:
                self._notices[str(directory)] = text
