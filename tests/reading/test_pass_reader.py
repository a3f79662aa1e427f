"""Around samples that cannot be read: which of them have gaps, and how often a bad shard is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock import FunctionReader, OpenShard, Source
from penstock.errors import CorruptShardError, StoreError
from penstock.reading.collected_rows import BatchReader
from penstock.reading.open_shards import OpenShards
from penstock.reading.pass_reader import fill_gaps, read_around
from penstock.reading.transforms import UnreadableSample, make_each


class _Damaged(Source):
    """Three shards of four rows: the second cannot be opened, of the third one row is bad."""

    def __init__(self, error: Exception) -> None:
        super().__init__([4, 4, 4])
        self.error = error
        self.opened: list[int] = []

    def open(self, shard: int) -> OpenShard:
        self.opened.append(shard)
        if shard == 1:
            raise self.error
        return OpenShard(FunctionReader(4, lambda row: self.sample(shard, row)))

    def sample(self, shard: int, row: int) -> dict[str, Any]:
        if (shard, row) == (2, 3):
            raise self.error
        return {"id": 4 * shard + row}


def read(source: _Damaged, ids: list[int]) -> list[Any]:
    return read_around(BatchReader(source.spans, OpenShards(source.open)), np.array(ids))


def test_what_can_be_read_is_read_and_a_bad_shard_is_asked_for_once() -> None:
    source = _Damaged(CorruptShardError("damaged"))
    found = read(source, [11, 4, 0, 10, 7, 3])
    assert [isinstance(each, UnreadableSample) for each in found] == [True, True, False, False, True, False]
    assert [each["id"] for each in found if isinstance(each, dict)] == [0, 10, 3]
    assert sorted(source.opened) == [0, 1, 2]


def test_a_store_that_is_away_is_no_bad_sample() -> None:
    with pytest.raises(StoreError, match="away"):
        read(_Damaged(StoreError("away")), [0, 4])


def test_gaps_are_filled_with_good_samples_of_their_batch() -> None:
    gap = UnreadableSample(CorruptShardError("damaged"))
    batch = [gap, "a", gap, "b", gap]
    assert fill_gaps(batch, range(5)) == 3
    assert batch == ["a", "a", "b", "b", "a"]
    with pytest.raises(CorruptShardError, match="damaged"):
        fill_gaps([gap], [0])


def test_what_fails_on_a_sample_leaves_a_gap_only_where_bad_ones_are_skipped() -> None:
    def make(_: int, sample: str) -> str:
        if sample == "bad":
            raise CorruptShardError("cannot be made")
        return sample.upper()

    made = make_each(make, [0, 1], ["a", "bad"], skips=True)
    assert made[0] == "A"
    assert isinstance(made[1], UnreadableSample)
    with pytest.raises(CorruptShardError, match="cannot be made"):
        make_each(make, [0, 1], ["a", "bad"], skips=False)
