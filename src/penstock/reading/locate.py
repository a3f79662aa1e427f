"""Which shards hold some ids, and which rows of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.formats.base import Rows
    from penstock.order.spans import Spans
    from penstock.types import Int64Array


def within_one_shard(ids: range | Int64Array, spans: Spans) -> tuple[int, Rows] | None:
    """Give the shard and the rows if all ids lie in one shard, which then needs no sorting out."""
    if not len(ids):
        return None
    if isinstance(ids, range):
        low, high = sorted((ids[0], ids[-1]))
    else:
        low, high = int(ids.min()), int(ids.max())
    shard = spans.shard_of(low)
    start = int(spans.starts[shard])
    if high >= spans.starts[shard + 1]:
        return None
    return shard, range(ids.start - start, ids.stop - start, ids.step) if isinstance(ids, range) else ids - start


def group_by_shard(ids: Int64Array, spans: Spans) -> Iterator[tuple[int, Int64Array, Int64Array]]:
    """Give for each shard that holds some of the ids: its number, the rows, and their places among the ids.

    Rows come in rising order: memory is read faster forwards.
    """
    if not len(ids):
        return
    order = np.argsort(ids)
    sorted_ids = ids[order]
    # Of all shards, only the few between the smallest and the largest id are searched for where they begin.
    first, last = spans.shard_of(int(sorted_ids[0])), spans.shard_of(int(sorted_ids[-1]))
    if last - first < len(ids):
        shards = np.arange(first, last + 1)
        cuts = np.searchsorted(sorted_ids, spans.starts[first : last + 2]).tolist()
    else:
        shards = np.unique(spans.locate(sorted_ids)[0])
        cuts = [*np.searchsorted(sorted_ids, spans.starts[shards]).tolist(), len(ids)]
    for shard, begin, end in zip(shards.tolist(), cuts, cuts[1:], strict=False):
        if begin < end:
            yield shard, sorted_ids[begin:end] - spans.starts[shard], order[begin:end]
