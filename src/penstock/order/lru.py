"""What was computed last, kept up to a total weight."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")

_weight_of = itemgetter(0)


class LRU(Generic[T]):
    """Keeps the values used last, up to a total weight. Losing one costs time only: it is computed again.

    Threads may share it without a lock, which a fork could leave locked: at worst a value is computed twice.
    Pickling leaves the values behind.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._heaviest = limit, 1
        self._kept: OrderedDict[Hashable, tuple[int, T]] = OrderedDict()

    def __reduce__(self) -> tuple[type[LRU[T]], tuple[int]]:
        return type(self), (self._limit,)

    def __call__(self, key: Hashable, compute: Callable[[], T], weight: int = 1) -> T:
        """Return the value of a key, computing it if it is not here."""
        found = self._kept.get(key)
        if found is None:
            self._make_room(weight)  # before computing, which may need the memory itself
            found = weight, compute()
        self._kept[key] = found
        with contextlib.suppress(KeyError):  # another thread may have thrown it out
            self._kept.move_to_end(key)
        return found[1]

    def _make_room(self, weight: int) -> None:
        self._heaviest = max(weight, self._heaviest)
        with contextlib.suppress(KeyError):
            while self._weigh() + weight > self._limit:
                self._kept.popitem(last=False)

    def _weigh(self) -> int:
        if self._heaviest == 1:
            return len(self._kept)
        return sum(map(_weight_of, list(self._kept.values())))
