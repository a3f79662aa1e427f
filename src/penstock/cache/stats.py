"""What a cache did in this process: leases, waits, downloads."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(slots=True)
class StreamStats:
    """What one stream of one cache did in this process."""

    leases: int = 0
    hits: int = 0  # leases of what was there
    waits: int = 0  # leases that had to wait
    seconds_waited: float = 0.0
    downloads: int = 0  # caused by this cache, prefetches included
    num_bytes: int = 0  # fetched for them


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What one cache did in this process, by stream."""

    streams: tuple[StreamStats, ...]

    @property
    def total(self) -> StreamStats:
        """The sum over all streams."""
        return StreamStats(*map(sum, zip(*map(astuple, self.streams), strict=True)))
