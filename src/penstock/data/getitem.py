"""What stands between the brackets of `dataset[...]`: numbers, slices, lists and arrays."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import SampleIndexError, SampleKeyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.formats.base import Rows
    from penstock.order.spans import Spans
    from penstock.types import Int64Array


def resolve_ids(key: Any, num_samples: int) -> int | range | Int64Array:
    """Turn a key into one id or many, all in range; negative numbers count from the end."""
    if isinstance(key, slice):
        return range(*key.indices(num_samples))
    if isinstance(key, (list, tuple, range, np.ndarray)) and np.ndim(key) > 0:
        return _resolve_many(key, num_samples)
    try:
        number = operator.index(key)
    except TypeError as error:
        raise SampleKeyError(
            f"a dataset takes a whole number, a slice, a list or an array of numbers, not {key!r:.100}"
        ) from error
    if not -num_samples <= number < num_samples:
        raise SampleIndexError(f"sample {number} is out of range: the dataset has {num_samples}", sample=number)
    return number % num_samples


def _resolve_many(key: Any, num_samples: int) -> Int64Array:
    numbers = np.asarray(key)
    if numbers.size == 0:
        return np.zeros(0, dtype=np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise SampleKeyError(f"a dataset takes a flat list of whole numbers, not {numbers.ndim}-d {numbers.dtype}")
    outside = (numbers < -num_samples) | (numbers >= num_samples)
    if outside.any():
        number = int(numbers[outside][0])
        raise SampleIndexError(f"sample {number} is out of range: the dataset has {num_samples}", sample=number)
    return numbers.astype(np.int64) % num_samples


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
