"""What a process may keep open of a cache that others share: the fetcher says so, and those who keep shards obey."""

from __future__ import annotations

from penstock.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """How much may stay open between two uses."""

    num_bytes: int | None = None  # None: as much as one likes
    is_tight: bool = False  # somebody waits for room: keep nothing that is not being read this moment


UNHEARD = Share(is_tight=True)  # without a line to the fetcher nobody can ask for what is kept, so nothing is


def is_news(told: Share | None, now: Share) -> bool:
    """Tell whether a share differs enough from what was said before: who comes or goes among many changes little."""
    if told is None or told.is_tight != now.is_tight:
        return True
    if told.num_bytes is None or now.num_bytes is None:
        return told.num_bytes is not now.num_bytes
    return abs(told.num_bytes - now.num_bytes) * 10 > told.num_bytes
