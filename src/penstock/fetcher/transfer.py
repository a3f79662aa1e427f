"""An item on its way: what the thread that fetches it is given, and all that it shares with the scheduler meanwhile."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.fetcher.pieces import PieceOwner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.fetcher.counts import GroupKey
    from penstock.wire.item import Item
    from penstock.wire.settings import CachedStream


@dataclass(frozen=True, slots=True)
class Demand:
    """Who wants an item at one moment."""

    is_urgent: bool  # somebody stands still until it is there
    is_requested: bool  # somebody waits for it: it is kept for him until he has locked it
    insists: bool  # somebody has waited for so long that he would rather hear from a full disk than wait for it
    cause: tuple[GroupKey, int] | None  # whose stream it is counted for


class Transfer(PieceOwner):
    """What is fetched does not change on the way. Who wants it does: that is asked for, and given as a value.

    Its rank has one writer, the scheduler, which replaces it as a whole under its lock; whoever reads it sees the one
    before or the one after.
    """

    def __init__(self, directory: Path, item: Item, stream: CachedStream, demand: Callable[[], Demand]) -> None:
        self.directory = directory
        self.item = item
        self.stream = stream
        self.demand = demand
        self.current_rank: tuple[float, ...] = ()
        self._lock = threading.Lock()
        self._num_bytes_done = 0
        self._is_cancelled = False

    def rank(self) -> tuple[float, ...]:
        """Give how urgent it is now."""
        return self.current_rank

    @property
    def num_bytes_done(self) -> int:
        """The bytes that have come, in this attempt."""
        return self._num_bytes_done

    def begin(self) -> None:
        """Count from the beginning."""
        with self._lock:
            self._num_bytes_done = 0

    def add_bytes(self, num_bytes: int) -> None:
        """Count bytes as they come; raises once nobody wants them any more."""
        if self._is_cancelled:
            raise CancelledError
        with self._lock:
            self._num_bytes_done += num_bytes

    @property
    def is_cancelled(self) -> bool:
        """Whether it was given up."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Give it up, for good: who wants it again begins another."""
        self._is_cancelled = True
