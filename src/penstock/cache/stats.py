"""What a cache did: leases, waits, downloads, counted where all processes of its dataset can see them."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.counters import private_row
from penstock.processes import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.counters import Row

COUNTED = ("hits", "waits", "waiting_ns", "downloads", "downloaded_bytes", "downloads_again")


@dataclass(frozen=True, slots=True)
class CachedStreamStats:
    """What one stream of one cache did in this process."""

    hits: int = 0  # leases of what was there
    waits: int = 0  # leases that had to wait
    seconds_waited: float = 0.0
    downloads: int = 0  # caused by this cache, prefetches included
    num_bytes: int = 0  # fetched for them
    downloads_again: int = 0  # of what had been fetched before, and was evicted

    @property
    def leases(self) -> int:
        """All leases."""
        return self.hits + self.waits


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What one cache did in this process, by stream."""

    streams: tuple[CachedStreamStats, ...]

    @property
    def total(self) -> CachedStreamStats:
        """The sum over all streams."""
        return CachedStreamStats(*map(sum, zip(*map(astuple, self.streams), strict=True)))


class CacheCounts:
    """Counts for the streams of a cache, in whatever process.

    Args:
        names: What each stream of the cache is called where it is counted.
        row: Gives what this process counts into, under these names and those of `COUNTED`; by default, its memory.
    """

    def __init__(self, names: Sequence[str], row: Callable[[], Row] | None = None) -> None:
        self._names = tuple(names)
        if row is None:
            row = PerProcess(partial(private_row, [f"{name}.{what}" for name in names for what in COUNTED])).get
        self._row = row

    def add(self, stream: int, **amounts: int) -> None:
        """Count something for a stream."""
        name = self._names[stream]
        self._row().add({f"{name}.{what}": amount for what, amount in amounts.items()})

    def read(self) -> CacheStats:
        """Return what this process has counted."""
        counts = self._row().read()
        by_stream = [[counts[f"{name}.{what}"] for what in COUNTED] for name in self._names]
        stats = (CachedStreamStats(hits, waits, ns / 1e9, *rest) for hits, waits, ns, *rest in by_stream)
        return CacheStats(tuple(stats))
