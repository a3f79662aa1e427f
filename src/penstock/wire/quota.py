"""What a process may keep open of a cache that others share: the fetcher says so, and those who keep shards obey."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenShardQuota:
    """How much may stay open between two uses."""

    num_bytes: int | None = None  # None: as much as one likes
    is_tight: bool = False  # room is waited for: keep nothing that is not being read this moment


UNHEARD = OpenShardQuota(is_tight=True)  # without a line to the fetcher what is kept cannot be asked for, so nothing is


def is_news(told: OpenShardQuota | None, now: OpenShardQuota) -> bool:
    """Return True if a share differs enough from what was said before: who comes or goes among many changes little."""
    if told is None or told.is_tight != now.is_tight:
        return True
    if told.num_bytes is None or now.num_bytes is None:
        return told.num_bytes is not now.num_bytes
    return abs(told.num_bytes - now.num_bytes) * 10 > told.num_bytes
