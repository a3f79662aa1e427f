"""Decoded frames that are wanted later, up to a number of bytes: those wanted soonest stay."""

from __future__ import annotations

import heapq
import math
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

NEVER = math.inf  # wanted at no time that is known


class _Kept(NamedTuple):
    frame: Any
    num_bytes: int
    place: int  # in the order in which they came


class FrameCache:
    """Keeps frames by when they are wanted; of those that nobody is known to want, the newest. Not for two threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: dict[Hashable, _Kept] = {}
        self._by_use: list[tuple[float, int, Hashable]] = []  # a heap, what goes first on top; some of it is outdated
        self._numbers = count()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def get(self, key: Hashable) -> Any:
        """Return a frame, or None if it is not here."""
        found = self._kept.get(key)
        return None if found is None else found.frame

    def would_keep(self, use: float) -> bool:
        """Return whether there is room for a frame that is wanted then, free or taken by what is wanted later."""
        if self.num_bytes < self._limit:
            return True
        self._drop_outdated()
        return bool(self._by_use) and use < -self._by_use[0][0]

    def put(self, key: Hashable, frame: Any, num_bytes: int, use: float = NEVER) -> None:
        """Keep a frame, or go on keeping it for another use; those wanted last of all make room for it."""
        if num_bytes > self._limit:
            return
        self.drop(key)
        place = next(self._numbers)
        self._kept[key] = _Kept(frame, num_bytes, place)
        self.num_bytes += num_bytes
        heapq.heappush(self._by_use, (-use, place, key))
        while self.num_bytes > self._limit:
            self._drop_outdated()
            self.drop(self._by_use[0][2])
        if len(self._by_use) > 2 * len(self._kept) + 64:
            self._by_use = [item for item in self._by_use if self._is_current(item)]
            heapq.heapify(self._by_use)

    def drop(self, key: Hashable) -> None:
        """Keep a frame no longer, if it is here."""
        found = self._kept.pop(key, None)
        if found is not None:
            self.num_bytes -= found.num_bytes

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()
        self._by_use.clear()
        self.num_bytes = 0

    def _is_current(self, item: tuple[float, int, Hashable]) -> bool:
        found = self._kept.get(item[2])
        return found is not None and found.place == item[1]

    def _drop_outdated(self) -> None:
        while self._by_use and not self._is_current(self._by_use[0]):
            heapq.heappop(self._by_use)
