"""What is counted while robot episodes are read: what decoders do, and how long samples take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.cache.stats import COUNTED as COUNTED_BY_CACHE
from penstock.cache.stats import CacheCounts
from penstock.counters import Counters, StreamStats
from penstock.data.ranks import worker_number
from penstock.episodes.decoders import COUNTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.counters import Row

_CLIPS = "clips_"
_STEPS = 4  # for each doubling of the time, so that a percentile is right within a tenth
_SHORTEST_NS = 1 << 10
_BUCKETS = [f"latency_{number}" for number in range(_STEPS * 30)]  # from a microsecond to a quarter of an hour


def open_episode_counters(num_streams: int = 1) -> Counters:
    """Begin to count for so many datasets of robot episodes, in this process and in its workers."""
    of_clips = [f"{_CLIPS}{stream}.{name}" for stream in range(num_streams) for name in COUNTED_BY_CACHE]
    return Counters([*COUNTED, *_BUCKETS, *of_clips], worker_number)


def clip_counts(counters: Counters, stream: int) -> CacheCounts:
    """Return what the cache of the videos of one dataset counts into."""
    return CacheCounts([f"{_CLIPS}{stream}"], counters.row)


def clip_stats(numbers: Mapping[str, int], stream: int) -> StreamStats:
    """Return what it has counted there."""
    found = {name: numbers.get(f"{_CLIPS}{stream}.{name}", 0) for name in COUNTED_BY_CACHE}
    return StreamStats(
        cache_hits=found["hits"],
        cache_waits=found["waits"],
        downloads=found["downloads"],
        downloaded_bytes=found["downloaded_bytes"],
        downloads_again=found["downloads_again"],
    )


def count_latency(row: Row, num_samples: int, elapsed_ns: int) -> None:
    """Count how long samples took that were made together: each an equal part of it."""
    if num_samples:
        each = max(1.0, elapsed_ns / num_samples / _SHORTEST_NS)
        row.add({_BUCKETS[min(len(_BUCKETS) - 1, int(_STEPS * np.log2(each)))]: num_samples})


def latency_ms(numbers: Mapping[str, int], share: float) -> float | None:
    """Return the milliseconds in which such a share of the samples was made; None if there were none."""
    counts = np.array([numbers.get(name, 0) for name in _BUCKETS])
    if not counts.sum():
        return None
    bucket = int(np.searchsorted(np.cumsum(counts), share * counts.sum()))
    middle_ns: float = _SHORTEST_NS * 2 ** ((bucket + 0.5) / _STEPS)
    return middle_ns / 1e6
