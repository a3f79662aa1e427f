"""What stands between the brackets of `dataset[...]`: numbers, slices, lists and arrays."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import SampleIndexError, SampleKeyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.types import Int64Array


def resolve_ids(key: Any, num_samples: int) -> int | range | Int64Array:
    """Turn a key into one id or many, all in range; negative numbers count from the end.

    Those of a key with several dimensions are laid end to end: `nest` undoes that.
    """
    if isinstance(key, slice):
        return range(*key.indices(num_samples))
    if isinstance(key, (list, tuple, range)) or (isinstance(key, np.ndarray) and key.ndim > 0):
        return _resolve_many(key, num_samples)
    try:
        number = operator.index(key)
    except TypeError as error:
        raise SampleKeyError(
            f"index a dataset with a whole number, a slice, or a list or array of numbers, not with {key!r:.100}"
        ) from error
    if not -num_samples <= number < num_samples:
        raise SampleIndexError(f"sample {number} is out of range: the dataset has {num_samples} samples", sample=number)
    return number % num_samples


def _resolve_many(key: Any, num_samples: int) -> Int64Array:
    try:
        numbers = np.asarray(key).ravel()
    except ValueError as error:
        raise SampleKeyError(
            f"nested lists of sample numbers must all have the same length, unlike {key!r:.100}"
        ) from error
    if numbers.size == 0:
        return np.zeros(0, dtype=np.int64)
    if numbers.dtype.kind not in "iu":
        raise SampleKeyError(f"sample numbers must be whole numbers, got {numbers.dtype}")
    lowest, highest = int(numbers.min()), int(numbers.max())
    if lowest < -num_samples or highest >= num_samples:
        outside = (numbers < -num_samples) | (numbers >= num_samples)
        number = int(numbers[outside][0])
        raise SampleIndexError(f"sample {number} is out of range: the dataset has {num_samples} samples", sample=number)
    ids = numbers.astype(np.int64)
    return ids if lowest >= 0 else ids % num_samples


def nest(items: list[Any], key: Any) -> list[Any]:
    """Return what was read for the ids of a key the shape of that key: lists of lists, if it has several dimensions."""
    shape = () if isinstance(key, (slice, range)) else np.shape(key)
    for length in reversed(shape[1:]):
        items = [items[begin : begin + length] for begin in range(0, len(items), length or 1)]
    return items


def resolve_flat(key: Any, num_samples: int) -> range | Int64Array:
    """Turn a key that is to be read by column into ids: a slice, or a flat list or array of numbers."""
    ids = resolve_ids(key, num_samples)
    if isinstance(ids, int) or (not isinstance(key, (slice, range)) and np.ndim(key) > 1):
        raise SampleKeyError("read_columns takes a slice, or a flat list or array of numbers")
    return ids


def items_at(key: Any, num_samples: int, read: Callable[[Sequence[int]], list[Any]]) -> Any:
    """Return the item of a number, or those of a slice, a list or an array of numbers, read all at once."""
    ids = resolve_ids(key, num_samples)
    return read([ids])[0] if isinstance(ids, int) else nest(read([int(number) for number in ids]), key)
