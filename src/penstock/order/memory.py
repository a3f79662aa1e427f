"""A small memory of what was computed last, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")


class Recent(Generic[T]):
    """Keeps the values used last, up to a total weight. Losing one costs time only: it is computed again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._kept: OrderedDict[Hashable, tuple[int, T]] = OrderedDict()

    def get(self, key: Hashable) -> T | None:
        """Give the value of a key if it is still here."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][1]

    def put(self, key: Hashable, value: T, weight: int = 1) -> T:
        """Keep a value, at the cost of those used longest ago; the newest one always stays."""
        self._make_room(weight)
        self._kept[key] = (weight, value)
        self._total += weight
        return value

    def __call__(self, key: Hashable, compute: Callable[[], T], weight: int = 1) -> T:
        """Give the value of a key, computing it if it is not here."""
        found = self.get(key)
        if found is None:
            self._make_room(weight)  # before computing, which may need the memory itself
            found = self.put(key, compute(), weight)
        return found

    def _make_room(self, weight: int) -> None:
        while self._kept and self._total + weight > self._limit:
            _, (freed, _) = self._kept.popitem(last=False)
            self._total -= freed
