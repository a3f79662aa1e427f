"""What is counted while robot episodes are read: what decoders do, and how long samples take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.counters import Counters
from penstock.data.seat import worker_number
from penstock.episodes.decoders import COUNTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.counters import Row

_STEPS = 4  # for each doubling of the time, so that a percentile is right within a tenth
_SHORTEST_NS = 1 << 10
_BUCKETS = [f"latency_{number}" for number in range(_STEPS * 30)]  # from a microsecond to a quarter of an hour


def open_episode_counters() -> Counters:
    """Begin to count for a dataset of robot episodes, in this process and in its workers."""
    return Counters([*COUNTED, *_BUCKETS], worker_number)


def count_latency(row: Row, num_samples: int, elapsed_ns: int) -> None:
    """Count how long samples took that were made together: each an equal part of it."""
    if num_samples:
        each = max(1.0, elapsed_ns / num_samples / _SHORTEST_NS)
        row.add({_BUCKETS[min(len(_BUCKETS) - 1, int(_STEPS * np.log2(each)))]: num_samples})


def latency_ms(numbers: Mapping[str, int], share: float) -> float | None:
    """Give the milliseconds in which such a share of the samples was made; None if there were none."""
    counts = np.array([numbers.get(name, 0) for name in _BUCKETS])
    if not counts.sum():
        return None
    bucket = int(np.searchsorted(np.cumsum(counts), share * counts.sum()))
    middle_ns: float = _SHORTEST_NS * 2 ** ((bucket + 0.5) / _STEPS)
    return middle_ns / 1e6
