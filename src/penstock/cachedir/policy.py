"""Whom to evict: pure bookkeeping over names, sizes and times. Looking at files and deleting them is done elsewhere."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import CacheTooSmallError
from penstock.quick_dataclass import dataclass
from penstock.units import format_bytes
from penstock.wire.share import Share

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

Group = TypeVar("Group", bound="Hashable")

# The smaller goes first: (0, last use) for what nobody expects, (1, -batches ahead) for what somebody does.
Rank = tuple[int, float]


@dataclass(slots=True)
class _Entry:
    num_bytes: int
    last_use: float


class EvictionOrder:
    """What one directory holds, least recently used first.

    Uses are seen late: readers leave them on the files, and `look` finds them when an entry is about to go. So each
    entry is looked at about once for each use, and a decision costs the logarithm of the number of entries.
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
        """Give the size of every entry."""
        entries = list(self._entries.items())  # at once: somebody else may be evicting
        return {name: entry.num_bytes for name, entry in entries}

    def put(self, name: str, num_bytes: int, last_use: float) -> None:
        """Add an entry, or say anew how large it is and when it was used."""
        self.drop(name)
        self._entries[name] = _Entry(num_bytes, last_use)
        self.used_bytes += num_bytes
        self._push(name)

    def touch(self, name: str, last_use: float) -> None:
        """Say that an entry was used."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.last_use = last_use
            self._push(name)

    def drop(self, name: str) -> int:
        """Take an entry off, and give its size; 0 if there is none."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return 0
        self.used_bytes -= entry.num_bytes
        return entry.num_bytes

    def expect(self, ahead: Mapping[str, int]) -> None:
        """Say what will be used, in how many batches; replaces what was said before. Names need not be there."""
        for name in self._ahead.keys() - ahead.keys():
            if name in self._entries:
                heapq.heappush(self._oldest, (self._entries[name].last_use, name))
        self._ahead = dict(ahead)
        self._latest = None

    def next_victim(
        self, look: Callable[[str], float | None], *, is_urgent: bool, tried: set[str]
    ) -> tuple[Rank, str] | None:
        """Give who should go first, or None.

        `look` tells when a name was really used last, or None if it is gone. Expected entries go only if it is urgent,
        the one needed latest first. Names in `tried` could not be evicted in this round and are passed over.
        """
        found = self._oldest_idle(look, tried)
        return self._latest_expected(look, tried) if found is None and is_urgent else found

    def _oldest_idle(self, look: Callable[[str], float | None], tried: set[str]) -> tuple[Rank, str] | None:
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
                seen = look(name)
                if seen is None:
                    self.drop(name)
                elif seen > entry.last_use:
                    self.touch(name, seen)
                else:
                    found = (0, entry.last_use), name
        for pair in passed_over:
            heapq.heappush(self._oldest, pair)
        return found

    def _latest_expected(self, look: Callable[[str], float | None], tried: set[str]) -> tuple[Rank, str] | None:
        if self._latest is None:
            self._latest = [(-ahead, name) for name, ahead in self._ahead.items()]
            heapq.heapify(self._latest)
        passed_over = []
        found: tuple[Rank, str] | None = None
        while self._latest and found is None:
            ahead, name = self._latest[0]
            if name not in self._entries or name in tried:
                passed_over.append(heapq.heappop(self._latest))
            elif look(name) is None:
                self.drop(name)
            else:
                found = (1, float(ahead)), name
        for pair in passed_over:
            heapq.heappush(self._latest, pair)
        return found

    def _push(self, name: str) -> None:
        heapq.heappush(self._oldest, (self._entries[name].last_use, name))
        if len(self._oldest) > 2 * len(self._entries) + 64:  # stale pairs: rebuild, at a cost paid by the pushes
            self._oldest = [(entry.last_use, name) for name, entry in self._entries.items() if name not in self._ahead]
            heapq.heapify(self._oldest)


@dataclass(frozen=True, slots=True)
class Limit:
    """A number of bytes that some directories together may take."""

    num_bytes: int
    directories: frozenset[str]


def describe_conflicts(limits: Iterable[Limit], names: frozenset[str], limit_bytes: int | None) -> list[str]:
    """Say which limits that others gave hold for some directories, instead of the one for them, or of none."""
    return [
        f"another dataset on this node limits {shared[0]} to {format_bytes(other.num_bytes)}:"
        " the smaller limit applies while both are open"
        for other in limits
        if (shared := sorted(other.directories & names)) and (limit_bytes is None or other.num_bytes < limit_bytes)
    ]


def check_possible(limit: Limit, name: str, num_bytes: int) -> None:
    """Raise if something is too large for a limit, whatever goes."""
    if num_bytes > limit.num_bytes:
        raise CacheTooSmallError(
            f"{name} takes {format_bytes(num_bytes)}, but the cache limit is {format_bytes(limit.num_bytes)}:"
            " raise cache_limit",
            needed=num_bytes,
            limit=limit.num_bytes,
        )


def shortage(limit: Limit, used: Mapping[str, int], wanted_bytes: int) -> int:
    """Give how many bytes must go before so many more may come; 0 if they fit."""
    return max(0, sum(used.get(name, 0) for name in limit.directories) + wanted_bytes - limit.num_bytes)


def fair_shares(
    groups: Mapping[Group, frozenset[str]], limits: Iterable[Limit], tight: Collection[str]
) -> dict[Group, Share]:
    """Say what each group of directories may keep open between uses: an equal part of half of each limit that binds it.

    The other half is for what comes. `tight` are the directories in which somebody waits for room now.
    """
    kinds = set(groups.values())
    parts: dict[frozenset[str], int] = {}
    for limit in set(limits):
        bound = {kind for kind in kinds if not limit.directories.isdisjoint(kind)}
        num_groups = sum(1 for kind in groups.values() if kind in bound)
        for kind in bound:
            part = limit.num_bytes // (2 * num_groups)
            parts[kind] = min(part, parts.get(kind, part))
    shares = {kind: Share(parts.get(kind), not kind.isdisjoint(tight)) for kind in kinds}
    return {group: shares[kind] for group, kind in groups.items()}
