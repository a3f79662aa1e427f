"""Open shards, kept while there is room: opening one costs more than reading from it."""

from __future__ import annotations

import math
import os
import resource
import threading
import weakref
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.formats.base import DropsPages
from penstock.processes import abandon_in_children, num_processors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.formats.base import ShardReader
    from penstock.reading.source import OpenShard
    from penstock.types import Int64Array
    from penstock.wire.quota import OpenShardQuota

# A mapped file costs up to two descriptors, and address space, but hardly memory. All datasets of a process together
# take no more than half of the descriptors that it may have.
_MOST_OPEN = 1024
_DESCRIPTORS_PER_SHARD = 2

_all_open: weakref.WeakSet[OpenShards] = weakref.WeakSet()


class OpenShards:
    """The shards used last. Those that were unpacked into memory count their bytes against a limit.

    With `sizes`, the bytes of each shard, no more of them stays mapped than a budget allows.

    What is being read stays open: `with open_shards:` around each use keeps others in the process from closing it. Of
    all that is open a thread needs only the last one that it got, and none while it waits for the next or for bytes
    that go elsewhere (`waiting`): then others may close them.
    """

    def __init__(
        self,
        open_shard: Callable[[int], OpenShard],
        memory_bytes: Int64Array | None = None,
        max_bytes: int = 0,
        sizes: Int64Array | None = None,
    ) -> None:
        self._open = open_shard
        self._sizes = sizes
        self._memory_bytes = memory_bytes
        self._max_bytes = max_bytes
        self.max_open: int | None = None  # besides what the process as a whole may have open
        self._mean_bytes = 1.0 if sizes is None or not len(sizes) else max(1.0, float(sizes.mean()))
        self._max_kept: int | None = None  # besides, what the other readers of the cache leave to this one
        self._keeps_none = False  # between uses, for as long as a process waits for room in the cache
        self.max_mapped_bytes = pages_budget()  # of all that this process has open
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Begin with nothing open, as in a forked child: what its parent has open, and maybe in use, is not its own."""
        self._readers: OrderedDict[int, OpenShard] = OrderedDict()
        self._used_bytes = 0
        self._pages = MappedPages(self._sizes)
        self._last: ShardReader | None = None
        self._in_use = threading.Lock()
        self._closing = threading.RLock()  # a signal handler may come back to it
        self._is_waiting = False
        self._closes_after_use = False
        _all_open.add(self)
        abandon_in_children(self)

    def __len__(self) -> int:
        return len(self._readers)

    def __contains__(self, shard: int) -> bool:
        return shard in self._readers

    def __enter__(self) -> None:
        self._in_use.acquire()

    def __exit__(self, *error: object) -> None:
        self._pages.num_uses += 1
        if self._pages.has_grown:  # of some shards it may have to go; the shards stay open
            elsewhere = sum(other._pages.num_bytes for other in list(_all_open) if other is not self)
            for shard in self._pages.to_drop(self.max_mapped_bytes - elsewhere):
                opened = self._readers.get(shard)
                if opened is not None and isinstance(opened.reader, DropsPages):
                    opened.reader.drop_pages()
        self._in_use.release()
        self._close_some()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for something within a use, needing nothing that is open: what is too much may be closed meanwhile."""
        with self._closing:
            self._is_waiting = True
            self._close_excess()
        try:
            yield
        finally:
            with self._closing:
                self._is_waiting = False

    def keep_to(self, share: OpenShardQuota) -> None:
        """Keep what fits into a share of the cache from now on, or nothing between uses; close what is too much.

        If another thread is reading, that waits until it is done.
        """
        self._max_kept = None if share.num_bytes is None else max(1, int(share.num_bytes / self._mean_bytes))
        self._keeps_none = share.is_tight
        self._close_some()

    def get(self, shard: int, num_rows: int = 1) -> ShardReader:
        """Return an open shard, to read so many rows of it; it stays open at least until the next call."""
        self._pages.note(shard, num_rows)
        found = self._readers.get(shard)
        if found is not None:
            self._readers.move_to_end(shard)
            self._last = found.reader
            return found.reader
        self._make_room(self._size(shard))
        with self.waiting():
            opened = self._open(shard)
        self._readers[shard] = opened
        self._used_bytes += self._size(shard)
        self._last = opened.reader
        return opened.reader

    def close(self) -> None:
        """Close all: now, or if another thread is reading, which may wait for a slow network, when it is done."""
        self._closes_after_use = True
        self._close_some()

    def _close_some(self) -> None:
        """Close what is too much, unless a thread is reading, which then does it when it is done."""
        with self._closing:
            if self._is_waiting:
                self._close_excess()
                return
        # The holder of the lock comes here after giving it back: one of both sees what is to be done.
        while (self._closes_after_use or len(self) > self._most_kept()) and self._in_use.acquire(blocking=False):
            try:
                with self._closing:
                    self._close_excess()
                    self._closes_after_use = False
            finally:
                self._in_use.release()

    def _close_excess(self) -> None:
        most = 0 if self._closes_after_use else self._most_kept()
        while len(self._readers) > most:
            self._close_oldest()

    def _most_kept(self) -> float:
        """Return how many may stay open between uses."""
        if self._keeps_none:
            return 0
        bounds = [bound for bound in (self.max_open, self._max_kept) if bound is not None]
        return min(bounds, default=math.inf)

    def _size(self, shard: int) -> int:
        return 0 if self._memory_bytes is None else int(self._memory_bytes[shard])

    def _make_room(self, num_bytes: int) -> None:
        most_kept = self._most_kept()
        while self._readers and (
            len(self) >= most_kept or (self._used_bytes and self._used_bytes + num_bytes > self._max_bytes)
        ):
            self._close_oldest()
        most_open = _most_open()
        others = [other for other in list(_all_open) if other is not self]
        while len(self) + sum(map(len, others)) >= most_open:
            if len(self) > most_open // (len(others) + 1) or not _close_elsewhere(others):
                if not self._readers:
                    return
                self._close_oldest()

    def _close_oldest(self) -> None:
        shard, opened = self._readers.popitem(last=False)
        self._pages.forget(shard)
        if opened.reader is self._last:
            self._last = None
        self._used_bytes -= self._size(shard)
        opened.reader.close()
        if opened.lease is not None:
            opened.lease.close()


def _close_elsewhere(others: list[OpenShards]) -> bool:
    """Close a shard of the reader that holds most and is not reading just now; return whether there was one."""
    for other in sorted(others, key=len, reverse=True):
        if len(other) and other._in_use.acquire(blocking=False):
            try:
                other._close_oldest()
            finally:
                other._in_use.release()
            other._close_some()
            return True
    return False


def _most_open() -> int:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MOST_OPEN
    return max(1, min(_MOST_OPEN, allowed // 2 // _DESCRIPTORS_PER_SHARD))


# --- Their pages -----------------------------------------------------------------------------------------------------


# A page that is read for the first time brings its neighbours with it, one of the table of offsets too.
_BYTES_PER_ROW = 128 << 10
# All readers of a node together keep up to this part of its memory mapped. It is memory of the system's file cache
# anyway, which it can take back; but it takes pages first that no process has mapped.
_PART_OF_MEMORY = 1 / 2
# So many shards may lie idle with their pages, and others for so many uses.
_FEW_SHARDS = 32
_IDLE_USES = 64
_RECENT_USES = 4


def pages_budget(num_readers: int | None = None) -> int:
    """Return how many bytes one of the readers of a node may keep mapped; by default, one a processor is assumed."""
    return int(_PART_OF_MEMORY * memory_limit() / (num_readers or num_processors()))


class MappedPages:
    """Estimates how much is mapped of each open shard by the rows that were read of it, and says which should let go.

    A shuffled order comes back to all shards of its window, block after block. Where these are more than may stay
    mapped, the ones used last drop theirs: so the others are still there when their turn comes. If the ones used least
    recently did, none would be.
    """

    def __init__(self, sizes: Int64Array | None = None) -> None:
        self._sizes = sizes  # None: nothing of them is mapped
        self._unmapped: OrderedDict[int, int] = OrderedDict()  # bytes by shard, the one that was used last at the end
        self._used_at: dict[int, int] = {}
        self.num_uses = 0  # of any shards, counted by their user
        self.num_bytes = 0
        self.has_grown = False  # since it was last asked which should drop theirs

    def note(self, shard: int, num_rows: int) -> None:
        """Note that rows of a shard are read."""
        unmapped = self._unmapped
        left = unmapped.get(shard)
        if left is None:
            left = unmapped[shard] = self._size(shard)
            self.has_grown = True
        else:
            unmapped.move_to_end(shard)
        if left:
            new = min(left, num_rows * _BYTES_PER_ROW)
            self.num_bytes += new
            unmapped[shard] = left - new
            self.has_grown = True
        self._used_at[shard] = self.num_uses

    def forget(self, shard: int) -> None:
        """Note that nothing is mapped of a shard any more."""
        if shard in self._unmapped:
            self.num_bytes -= self._size(shard) - self._unmapped.pop(shard)
            del self._used_at[shard]

    def to_drop(self, max_bytes: int) -> list[int]:
        """Return which shards should have their pages taken away now; they count as unmapped then."""
        self.has_grown = False
        dropping: list[int] = []
        while self._unmapped:
            oldest = next(iter(self._unmapped))
            idle_uses = self.num_uses - self._used_at[oldest]
            if len(self._unmapped) > _FEW_SHARDS and idle_uses > _IDLE_USES:
                dropping.append(oldest)
            elif self.num_bytes > max_bytes:
                dropping.append(oldest if idle_uses > _RECENT_USES else next(reversed(self._unmapped)))
            else:
                break
            self.forget(dropping[-1])
        return dropping

    def _size(self, shard: int) -> int:
        return 0 if self._sizes is None else int(self._sizes[shard])


# --- Memory ----------------------------------------------------------------------------------------------------------


def memory_limit(root: Path = Path("/")) -> int:
    """Return the bytes of memory of the machine, or of the smallest control group that this process is in."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    """Yield the limits of all groups that this process is in, of both versions of control groups."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux, or nothing to be seen
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for top in (mount, mount / "unified"):
                yield from _limits_up_to(top, path, ("memory.max", "memory.high"))
        elif "memory" in controllers.split(","):
            yield from _limits_up_to(mount / "memory", path, ("memory.limit_in_bytes",))


def _limits_up_to(top: Path, path: str, names: tuple[str, ...]) -> Iterator[int]:
    """Yield the limits of a group and of those above it. In a container the path may be one of the world outside."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        for name in names:
            try:
                text = top.joinpath(*parts[:depth], name).read_text().strip()
            except OSError:
                continue
            if text.isdecimal():
                yield int(text)
