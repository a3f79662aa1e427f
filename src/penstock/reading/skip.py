"""Going on without the samples that cannot be read: another good one of the same batch stands in for each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from penstock.errors import DataError, ObjectChangedError, ObjectNotFoundError
from penstock.reading.collected_rows import group_by_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.formats.base import ShardReader
    from penstock.reading.collected_rows import BatchReader
    from penstock.types import Int64Array, Sample

log = logging.getLogger("penstock.data")

# What may be wrong with one sample or one shard. A store that is away is not: then all would be skipped.
SKIPPED = (DataError, ObjectNotFoundError, ObjectChangedError)


class UnreadableSample:
    """Stands where a sample could not be read, and knows why."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def read_around(reader: BatchReader, ids: Int64Array) -> list[Sample | UnreadableSample]:
    """Read samples that cannot all be read, row by row where need be; a gap stands for each that cannot.

    A shard that fails is asked for once.
    """
    grouped, shards = group_by_shard(ids, reader.spans), reader.shards
    samples: dict[int, Sample | UnreadableSample] = {}
    for shard, begin, end in grouped:
        rows, places = grouped.rows[begin:end], grouped.places[begin:end].tolist()
        with shards:
            try:
                opened = shards.get(shard, len(rows))
            except SKIPPED as error:
                samples.update(dict.fromkeys(places, UnreadableSample(error)))
                continue
            try:
                samples.update(zip(places, opened.read(rows), strict=True))
            except SKIPPED:
                samples.update(zip(places, [_read_row(opened, row) for row in rows.tolist()], strict=True))
    return [samples[place] for place in range(len(ids))]


def _read_row(reader: ShardReader, row: int) -> Sample | UnreadableSample:
    try:
        return reader.read([row])[0]
    except SKIPPED as error:
        return UnreadableSample(error)


def make_each(make: Callable[[int, Any], Any], ids: Sequence[int], samples: Sequence[Any], *, skips: bool) -> list[Any]:
    """Make something of each sample that could be read; if bad ones are skipped, a gap where that fails."""
    if not skips:
        return [make(number, sample) for number, sample in zip(ids, samples, strict=True)]
    made: list[Any] = []
    for number, sample in zip(ids, samples, strict=True):
        try:
            made.append(sample if isinstance(sample, UnreadableSample) else make(number, sample))
        except SKIPPED as error:
            made.append(UnreadableSample(error))
    return made


def fill_gaps(batch: list[Any], ids: Sequence[int]) -> int:
    """Put good samples of a batch in the place of those that could not be read; give the number of these.

    A batch without any good sample raises the error of its first.
    """
    gaps = [place for place, sample in enumerate(batch) if isinstance(sample, UnreadableSample)]
    if not gaps:
        return 0
    good = [sample for sample in batch if not isinstance(sample, UnreadableSample)]
    if not good:
        raise batch[0].error
    for number, place in enumerate(gaps):
        log.warning("skipping sample %s: %s", ids[place], batch[place].error)
        batch[place] = good[number % len(good)]
    return len(gaps)
