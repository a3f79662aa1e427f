"""The cache directories of all clients: each is held by whoever scans it or evicts from it, one at a time.

Two kinds of locks, so that nobody waits for a disk who does not have to. What is said of a directory (what came, what
is expected, what is reserved) is noted under one short lock, the books, which is never held during IO. Each directory
has a lock of its own besides, held during scans and evictions; who gets it looks at the notes first. It is taken before
the books, never after.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from penstock.cachedir.folder import Folder
from penstock.quick_dataclass import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from penstock.cachedir.ledger import Record
    from penstock.cachedir.lock import Stripes


@dataclass(slots=True)
class _Noted:
    """A directory, and what was said of it since somebody held it last."""

    folder: Folder
    lock: threading.Lock = field(default_factory=threading.Lock)
    expected: Mapping[str, int] | None = None
    arrived: dict[str, tuple[int, float]] = field(default_factory=dict)  # bytes and time, by name

    def take_notes(self) -> None:
        order = self.folder.eviction_order
        for name, (num_bytes, arrived_at) in self.arrived.items():
            order.put(name, num_bytes, arrived_at)
        self.arrived = {}
        if self.expected is not None:
            order.expect(self.expected)
            self.expected = None


class Folders:
    """Safe for threads."""

    def __init__(self, stripes: Stripes) -> None:
        self.books = threading.RLock()  # the collector may close a cache, and with it its group, at any time
        self._stripes = stripes
        self._noted: dict[str, _Noted] = {}

    def __getitem__(self, name: str) -> Folder:
        return self._noted[name].folder

    def all(self) -> dict[str, Folder]:
        """Give all directories by name."""
        with self.books:
            return {name: noted.folder for name, noted in self._noted.items()}

    def open(self, directory: Path) -> None:
        """Add a directory; what killed fetchers left there on its way is removed."""
        name = str(directory)
        with self.books:
            is_known = name in self._noted
            if not is_known:
                self._noted[name] = _Noted(Folder(directory, self._stripes))
        if not is_known:
            with self.holding([name]):
                self[name].sweep()

    # --- Holding --------------------------------------------------------------------------------------------

    @contextmanager
    def holding(self, names: Collection[str], *, wait: bool = True) -> Iterator[bool]:
        """Have directories to oneself, to scan them or to evict from them. Who holds some takes no others.

        Tells whether that is so: without `wait`, it is not if anybody else holds any of them.
        """
        with ExitStack() as stack:
            for name in sorted(names):  # everybody in the same order, so that no two wait for each other
                if not self._noted[name].lock.acquire(blocking=wait):
                    yield False
                    return
                stack.callback(self._noted[name].lock.release)
            with self.books:
                for name in names:
                    self._noted[name].take_notes()
            yield True

    # --- Noting (with the books) ----------------------------------------------------------------------------

    def expect(self, name: str, ahead: Mapping[str, int]) -> None:
        """Note what will be used in a directory, in how many batches."""
        with self.books:
            self._noted[name].expected = ahead

    def arrived(self, name: str, record: Record) -> None:
        """Note files that are there now."""
        with self.books:
            self._noted[name].arrived[record.name] = record.num_bytes, time.time()

    def stays(self, names: Iterable[str]) -> int:
        """Give the bytes that are in directories, those on their way included."""
        total = 0
        with self.books:
            for noted in map(self._noted.__getitem__, names):
                total += noted.folder.eviction_order.used_bytes + noted.folder.reserved_bytes
                total += sum(num_bytes for num_bytes, _ in noted.arrived.values())
        return total
