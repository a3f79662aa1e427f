"""Room for shards: who is evicted, who waits for space, who may keep how much open.

It decides on plain values (names, sizes, times) and does nothing else: no IO, no threads, no clocks, no callbacks.
`rooms.py` looks at files and deletes them, and says here what it has seen, and what time it is.
"""

from __future__ import annotations

import enum
import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.errors import CacheTooSmallError
from penstock.units import format_bytes
from penstock.wire.quota import OpenShardQuota

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping

Group = TypeVar("Group", bound="Hashable")

# The smaller goes first: (0, last use) for what is not expected, (1, -batches ahead) for what is.
Rank = tuple[int, float]

# A shard that was just handed over is not evicted before its reader has locked it, unless the reader died.
_HAND_OVER_S = 5.0
_NEARLY_FULL_BYTES = 8 << 30  # less than that above its reserve may be gone before the next plan comes


# --- Who goes first -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Entry:
    num_bytes: int
    last_use: float


class EvictionOrder:
    """What one directory holds, least recently used first.

    Uses are seen late: readers leave them on the files, which are looked at when an entry is about to go. So each entry
    is looked at about once for each use, and a decision costs the logarithm of the number of entries.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        self._entries: dict[str, _Entry] = {}
        self._oldest: list[tuple[float, str]] = []
        self._ahead: dict[str, int] = {}
        self._latest: list[tuple[int, str]] | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def sizes(self) -> dict[str, int]:
        """Return the size of every entry."""
        return {name: entry.num_bytes for name, entry in self._entries.items()}

    def put(self, name: str, num_bytes: int, last_use: float) -> None:
        """Add an entry, or say anew how large it is and when it was used."""
        self.drop(name)
        self._entries[name] = _Entry(num_bytes, last_use)
        self.used_bytes += num_bytes
        self._push(name)

    def touch(self, name: str, last_use: float) -> None:
        """Note that an entry was used."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.last_use = last_use
            self._push(name)

    def drop(self, name: str) -> int:
        """Take an entry off, and return its size; 0 if there is none."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return 0
        self.used_bytes -= entry.num_bytes
        return entry.num_bytes

    def expect(self, ahead: Mapping[str, int]) -> None:
        """Note what will be used, in how many batches; replaces what was said before. Names need not be there."""
        for name in self._ahead.keys() - ahead.keys():
            if name in self._entries:
                heapq.heappush(self._oldest, (self._entries[name].last_use, name))
        self._ahead = dict(ahead)
        self._latest = None

    def candidate(self, *, is_urgent: bool, tried: Collection[str] = ()) -> tuple[Rank, str] | None:
        """Return what should go first as far as is known: it is to be looked at, and `looked` to be told.

        Expected entries go only if it is urgent, the one needed latest first. Names in `tried` could not be evicted in
        this round and are passed over.
        """
        found = self._oldest_idle(tried)
        return self._latest_expected(tried) if found is None and is_urgent else found

    def looked(self, rank: Rank, name: str, last_use: float | None) -> bool:
        """Note when a candidate was really used last (None: it is gone), and return True if it is the one to go."""
        entry = self._entries.get(name)
        if entry is None or last_use is None:
            self.drop(name)
            return False
        if (rank[0] == 1) != (name in self._ahead):  # another plan came while it was looked at
            return False
        if rank[0] == 0 and last_use > entry.last_use:
            self.touch(name, last_use)
            return False
        return True

    def _oldest_idle(self, tried: Collection[str]) -> tuple[Rank, str] | None:
        passed_over = []
        found: tuple[Rank, str] | None = None
        while self._oldest and found is None:
            last_use, name = self._oldest[0]
            entry = self._entries.get(name)
            if entry is None or entry.last_use != last_use or name in self._ahead:
                heapq.heappop(self._oldest)
            elif name in tried:
                passed_over.append(heapq.heappop(self._oldest))
            else:
                found = (0, last_use), name
        for pair in passed_over:
            heapq.heappush(self._oldest, pair)
        return found

    def _latest_expected(self, tried: Collection[str]) -> tuple[Rank, str] | None:
        if self._latest is None:
            self._latest = [(-ahead, name) for name, ahead in self._ahead.items()]
            heapq.heapify(self._latest)
        passed_over = []
        while self._latest and (self._latest[0][1] not in self._entries or self._latest[0][1] in tried):
            passed_over.append(heapq.heappop(self._latest))
        found = self._latest[0] if self._latest else None
        for pair in passed_over:
            heapq.heappush(self._latest, pair)
        return None if found is None else ((1, float(found[0])), found[1])

    def _push(self, name: str) -> None:
        heapq.heappush(self._oldest, (self._entries[name].last_use, name))
        if len(self._oldest) > 2 * len(self._entries) + 64:  # stale pairs: rebuild, at a cost paid by the pushes
            self._oldest = [(entry.last_use, name) for name, entry in self._entries.items() if name not in self._ahead]
            heapq.heapify(self._oldest)


# --- How much there may be ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limit:
    """A number of bytes that some directories together may take."""

    num_bytes: int
    directories: frozenset[str]


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system as it is now."""

    device: int
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that an item holds while it is fetched."""

    directory: str
    name: str
    num_bytes: int  # as it will stay
    temporary_bytes: int  # what it needs besides, until it is there

    @property
    def all_bytes(self) -> int:
        """What it takes of the disk."""
        return self.num_bytes + self.temporary_bytes


def describe_conflicts(limits: Iterable[Limit], names: frozenset[str], limit_bytes: int | None) -> list[str]:
    """Describe which limits that others gave hold for some directories, instead of the one for them, or of none."""
    return [
        f"another dataset on this node limits {shared[0]} to {format_bytes(other.num_bytes)}:"
        " the smaller limit applies while both are open"
        for other in limits
        if (shared := sorted(other.directories & names)) and (limit_bytes is None or other.num_bytes < limit_bytes)
    ]


def check_possible(limit: Limit, name: str, num_bytes: int, index_bytes: int = 0) -> None:
    """Raise if something is too large for a limit beside indexes, whatever goes."""
    if num_bytes + index_bytes > limit.num_bytes:
        beside = f" and the index {format_bytes(index_bytes)}" if index_bytes else ""
        raise CacheTooSmallError(
            f"{name} takes {format_bytes(num_bytes)}{beside}, but the cache limit is {format_bytes(limit.num_bytes)}:"
            " raise cache_limit",
            needed=num_bytes + index_bytes,
            limit=limit.num_bytes,
        )


def fair_shares(
    groups: Mapping[Group, frozenset[str]], limits: Iterable[Limit], tight: Collection[str]
) -> dict[Group, OpenShardQuota]:
    """Return what each group may keep open between uses: an equal part of half of each limit that binds it.

    The other half is for what comes. `tight` are the directories in which room is waited for now.
    """
    kinds = set(groups.values())
    parts: dict[frozenset[str], int] = {}
    for limit in set(limits):
        bound = {kind for kind in kinds if not limit.directories.isdisjoint(kind)}
        num_groups = sum(1 for kind in groups.values() if kind in bound)
        for kind in bound:
            part = limit.num_bytes // (2 * num_groups)
            parts[kind] = min(part, parts.get(kind, part))
    shares = {kind: OpenShardQuota(parts.get(kind), not kind.isdisjoint(tight)) for kind in kinds}
    return {group: shares[kind] for group, kind in groups.items()}


# --- The books of all directories ---------------------------------------------------------------------------


class Step(enum.Enum):
    """What follows for one who wants room, unless something is to be evicted first."""

    FITS = enum.auto()
    WAITS = enum.auto()


class Victim(NamedTuple):
    """What is to go first, once its file has been looked at."""

    rank: Rank
    directory: str
    name: str


@dataclass(slots=True)
class Shelf:
    """What one directory holds, and what is being fetched to it."""

    order: EvictionOrder = field(default_factory=EvictionOrder)
    index_bytes: int = 0  # of an index that was brought there; it stays as long as the directory
    reserved_bytes: int = 0
    temporary_bytes: int = 0
    handed_over: dict[str, float] = field(default_factory=dict)  # until when a copy waits for its reader's lock

    @property
    def stays_bytes(self) -> int:
        """The bytes that are there, those that are being fetched included."""
        return self.order.used_bytes + self.index_bytes + self.reserved_bytes


class Budget:
    """The directories of all clients, and the limits that bind them."""

    def __init__(self) -> None:
        self.shelves: dict[str, Shelf] = {}
        self.too_full: set[Limit] = set()  # those that came later than what their directories hold
        self.has_news = False  # whether a disk has become full, or has room again
        self._groups: dict[Hashable, frozenset[str]] = {}
        self._limits: dict[Hashable, Limit] = {}
        self._unlimited: set[Hashable] = set()  # groups whose limit was not given, but is a share of the disk
        self._full_disks: dict[int, Limit] = {}  # by device: what the caches on it may take, as long as it is so full

    # --- Who is bound by what -------------------------------------------------------------------------------

    def open(self, group: Hashable, names: frozenset[str], limit: Limit | None, *, is_given: bool) -> list[str]:
        """Add a group of directories, and return warnings about limits of others that bind them too."""
        given = [limit for other, limit in self._limits.items() if other not in self._unlimited]
        warnings = describe_conflicts(given, names, limit.num_bytes if limit is not None and is_given else None)
        self._groups[group] = names
        if limit is not None:
            self._limits[group] = limit
            self.too_full.add(limit)
            if not is_given:
                self._unlimited.add(group)
        return warnings

    def close(self, group: Hashable) -> None:
        """Forget a group."""
        self._groups.pop(group, None)
        self._limits.pop(group, None)
        self._unlimited.discard(group)
        self.too_full &= set(self._limits.values())

    def limits_of(self, directory: str) -> list[Limit]:
        """Return the limits that bind a directory."""
        return [limit for limit in self._limits.values() if directory in limit.directories]

    def may_evict(self, directory: str, disk: Disk | None, reserve_bytes: int) -> bool:
        """Return True if anything may have to go from a directory soon: it has a limit, or its disk is nearly full."""
        if any(directory in limit.directories for limit in self._all_limits()):
            return True
        return disk is not None and disk.free_bytes - reserve_bytes < _NEARLY_FULL_BYTES

    def competitors(self) -> dict[str, frozenset[str]]:
        """Return the directories that share a limit, or a disk that is full, with each one, itself among them."""
        found: dict[str, frozenset[str]] = {}
        for directories in {limit.directories for limit in self._all_limits()}:
            for name in directories:
                found[name] = directories if name not in found else directories | found[name]
        return found

    def shares(self, tight: Collection[str]) -> dict[Hashable, OpenShardQuota]:
        """Return what each group may keep open, given the directories in which room is waited for."""
        return fair_shares(self._groups, self._all_limits(), tight)

    def _all_limits(self) -> list[Limit]:
        return [*self._limits.values(), *self._full_disks.values()]

    # --- What comes -----------------------------------------------------------------------------------------

    def take(self, wanted: Reservation) -> Reservation:
        """Count room as taken."""
        shelf = self.shelves[wanted.directory]
        shelf.reserved_bytes += wanted.num_bytes
        shelf.temporary_bytes += wanted.temporary_bytes
        return wanted

    def claim(self, taken: Reservation, name: str | None, num_bytes: int, now: float) -> None:
        """Count room as that of a copy that has come, or (None) as free again.

        A copy that is larger than was estimated may have broken a limit.
        """
        shelf = self.shelves[taken.directory]
        shelf.reserved_bytes -= taken.num_bytes
        shelf.temporary_bytes -= taken.temporary_bytes
        if name is not None:
            shelf.order.put(name, num_bytes, now)
            if num_bytes > taken.num_bytes:
                self.too_full |= set(self.limits_of(taken.directory))

    def hand_over(self, directory: str, name: str, now: float) -> None:
        """Keep a copy until its reader says that it has locked it."""
        self.shelves[directory].handed_over[name] = now + _HAND_OVER_S

    def is_handed_over(self, directory: str, name: str, now: float) -> bool:
        """Return True while the reader of a copy is about to lock it."""
        return self.shelves[directory].handed_over.get(name, now) > now

    def is_taken(self, directory: str, names: Iterable[str]) -> None:
        """Trust the reader's own lock from now on."""
        for name in names:
            self.shelves[directory].handed_over.pop(name, None)

    def usage(self) -> dict[str, int]:
        """Return the bytes known in each directory, those being fetched included."""
        return {name: shelf.stays_bytes + shelf.temporary_bytes for name, shelf in self.shelves.items()}

    # --- What goes ------------------------------------------------------------------------------------------

    def next_step(
        self, limit: Limit, wanted: int, temporary: int, *, is_urgent: bool, tried: Mapping[str, Collection[str]]
    ) -> Victim | Step:
        """Decide what is to be done for so many bytes more: nothing, something to evict first, or to wait.

        What is urgent may pass the limit by what it needs only while it is unpacked.
        """
        shelves = [self.shelves[name] for name in limit.directories]
        if not is_urgent:
            wanted += temporary + sum(shelf.temporary_bytes for shelf in shelves)
        if sum(shelf.stays_bytes for shelf in shelves) + wanted <= limit.num_bytes:
            return Step.FITS
        candidates = [
            Victim(found[0], name, found[1])
            for name in limit.directories
            if (found := self.shelves[name].order.candidate(is_urgent=is_urgent, tried=tried.get(name, ()))) is not None
        ]
        return min(candidates, default=Step.WAITS)

    def fits_unused(self, wanted: Reservation) -> bool:
        """Return True if there is room without evicting anything, what is needed while it is unpacked included."""
        used = self.usage()
        return all(
            sum(used[name] for name in limit.directories) + wanted.all_bytes <= limit.num_bytes
            for limit in self.limits_of(wanted.directory)
        )

    def index_bytes(self, limit: Limit) -> int:
        """Return what the indexes in the directories of a limit take."""
        return sum(self.shelves[name].index_bytes for name in limit.directories)

    def evicted(self, directory: str, name: str) -> int:
        """Note that a copy is gone, and return its size."""
        shelf = self.shelves[directory]
        shelf.handed_over.pop(name, None)
        return shelf.order.drop(name)

    # --- Disks ----------------------------------------------------------------------------------------------

    def fits_disk(self, wanted: Reservation, disk: Disk, reserve_bytes: int) -> bool:
        """Return True if a disk has room besides its reserve.

        Bytes being fetched may be counted twice, here and by the disk: it is full a little earlier then.
        """
        coming = sum(shelf.reserved_bytes + shelf.temporary_bytes for shelf in self.shelves.values())
        if disk.free_bytes - coming - wanted.all_bytes < reserve_bytes:
            return False
        if disk.device in self._full_disks and disk.free_bytes >= 2 * (reserve_bytes + wanted.all_bytes):
            del self._full_disks[disk.device]
            self.has_news = True
        return True

    def ceiling(self, names: frozenset[str], free_bytes: int) -> Limit:
        """Return what directories may take if they may fill so much more."""
        used = sum(self.shelves[name].order.used_bytes + self.shelves[name].index_bytes for name in names)
        return Limit(max(0, used + free_bytes), names)

    def note_full(self, disk: Disk, ceiling: Limit) -> None:
        """Note what the caches on a disk may take, as long as it is so full."""
        self._full_disks[disk.device] = ceiling
        self.has_news = True
