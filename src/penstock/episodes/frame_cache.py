"""Frames that were decoded on the way to others, kept for those who want them next, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable


class _Kept(NamedTuple):
    frame: Any
    num_bytes: int


class FrameCache:
    """Keeps the frames used last. Not for two threads at once."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> Any:
        """Give a frame, or None if it is not here."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found.frame

    def put(self, key: Hashable, frame: Any, num_bytes: int) -> None:
        """Keep a frame; those used longest ago make room for it."""
        if num_bytes > self._limit:
            return
        old = self._kept.pop(key, None)
        self.num_bytes += num_bytes - (old.num_bytes if old is not None else 0)
        self._kept[key] = _Kept(frame, num_bytes)
        while self.num_bytes > self._limit:
            _, lost = self._kept.popitem(last=False)
            self.num_bytes -= lost.num_bytes

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()
        self.num_bytes = 0
