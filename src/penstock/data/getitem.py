"""What stands between the brackets of `dataset[...]`: numbers, slices, lists and arrays."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import SampleIndexError, SampleKeyError

if TYPE_CHECKING:
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
