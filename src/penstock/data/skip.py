"""Going on without the samples that cannot be read: another good one of the same batch stands in for each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import DataError, ObjectChangedError, ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.types import Int64Array

log = logging.getLogger("penstock.data")

T = TypeVar("T")

# What may be wrong with one sample or one shard. A store that is away is not: then all would be skipped.
SKIPPED = (DataError, ObjectNotFoundError, ObjectChangedError)


def read_around(ids: Sequence[int] | Int64Array, read_one: Callable[[int], T]) -> tuple[list[T], int]:
    """Read samples one by one, putting good ones in the place of bad ones; give them and the number of bad ones.

    A batch without any good sample raises the error of its first.
    """
    read: list[T | None] = []
    bad: list[int] = []
    first_error: Exception | None = None
    for place, sample_id in enumerate(ids):
        try:
            read.append(read_one(int(sample_id)))
        except SKIPPED as error:
            log.warning("sample %s is skipped: %s", sample_id, error)
            first_error = first_error or error
            read.append(None)
            bad.append(place)
    good = [place for place in range(len(read)) if place not in set(bad)]
    if not good and first_error is not None:
        raise first_error
    for number, place in enumerate(bad):
        read[place] = read[good[number % len(good)]]
    return read, len(bad)  # type: ignore[return-value]
