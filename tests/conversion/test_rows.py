"""Rows of a task: pieces of shards, splits and bad rows, from any position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import MapBatchTransform, MemoryShardedSource
from penstock.conversion.rows import Piece, TaskRows, as_chain
from penstock.errors import ConfigError, MissingColumnError, TransformError
from penstock.sources.split_rule import SplitRule, split_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = MemoryShardedSource([{"id": number} for number in range(300)], num_shards=3)
NAMES = SOURCE.shard_names


def odd_twice(sample: dict[str, Any]) -> Any:
    return [sample, sample] if sample["id"] % 2 else None


def fails(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] % 50 == 3:
        raise ValueError("three")
    return sample


def rows(transform: Any = None, **options: Any) -> TaskRows:
    pieces = [Piece(NAMES[0], 10, 90), Piece(NAMES[1])]
    return TaskRows(SOURCE, pieces, () if transform is None else tuple(as_chain(transform)), **options)


def ids(samples: list[dict[str, Any]]) -> list[int]:
    return [sample["id"] for sample in samples]


def test_pieces_follow_each_other() -> None:
    assert ids(rows().take(1000)) == [*range(10, 90), *range(100, 200)]


@given(st.integers(0, 400), st.sampled_from([None, odd_twice, fails, MapBatchTransform(lambda rows: rows[1:], 70)]))
def test_any_position_is_gone_back_to(count: int, transform: Any) -> None:
    rejected: list[Any] = []
    whole, begun, resumed = (rows(transform, on_rejected=rejected.extend) for _ in range(3))
    expected = whole.take(1000)
    assert begun.take(count) == expected[:count]
    resumed.load_state_dict(begun.state_dict())
    told, rejected[:] = list(rejected), []
    assert resumed.take(1000) == expected[count:]
    if count < len(expected):
        assert rejected == told[: len(rejected)]


def test_a_bad_row_is_named_or_listed() -> None:
    with pytest.raises(TransformError, match=r"row 53 of memory:0: ValueError: three"):
        rows(fails).take(1000)
    rejected: list[dict[str, Any]] = []
    assert 53 not in ids(rows(fails, on_rejected=rejected.extend).take(1000))
    assert [each["where"] for each in rejected] == [f"row {n} of memory:{s}" for s, n in ((0, 53), (1, 3), (1, 53))]


def test_of_a_batch_that_fails_the_good_rows_stay() -> None:
    def all_at_once(samples: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return map(fails, samples)

    kept = rows(MapBatchTransform(all_at_once, 64), on_rejected=lambda _: None).take(1000)
    assert len(kept) == 180 - 3


@given(st.integers(0, 2**32), st.lists(st.integers(1, 100), min_size=1, max_size=4))
def test_each_row_is_in_one_split_of_all_its_samples(seed: int, parts: list[int]) -> None:
    shares = {str(number): part / sum(parts) for number, part in enumerate(parts)}
    rule, found = split_rule(shares, None, seed), list[tuple[int, int]]()
    for place, samples in rows(odd_twice).parted(rule):
        assert 0 <= place < len(parts)
        found += [(sample["id"], place) for sample in samples]
    assert sorted(number for number, _ in found) == sorted(ids(rows(odd_twice).take(1000)))
    assert len(dict(found)) == len(set(found))


def test_a_column_decides_whatever_its_type_in_numpy() -> None:
    rule = SplitRule(("a", "b"), (0.5, 1.0), "id")
    for number in range(50):
        assert rule.place({"id": number}, ("a", 0)) == rule.place({"id": np.int64(number)}, ("b", number))
    with pytest.raises(MissingColumnError, match="no column 'id' to split by"):
        rule.place({"text": ""}, ("a", 0))


@pytest.mark.parametrize("shares", [{}, {"a": 0.5}, {"a": 1.5, "b": -0.5}])
def test_shares_that_are_none(shares: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="splits="):
        split_rule(shares, None, 0)
