"""Sources: shards by name and row, iterators with a state, lengths only where they are exact."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import CompositeShardedSource, LimitedShardedSource, MemoryShardedSource, ShardedSource, ShardInfo
from penstock.errors import ConfigError, ResumeError, SampleIndexError
from tests.sources.cutting import check_cut_anywhere

if TYPE_CHECKING:
    from collections.abc import Iterator


def numbers(count: int, num_shards: int = 1, name: str = "memory") -> MemoryShardedSource:
    return MemoryShardedSource([{"x": x} for x in range(count)], num_shards=num_shards, name=name)


def xs(samples: Any) -> list[int]:
    return [sample["x"] for sample in samples]


class Squares(ShardedSource):
    """A source as users write one: names, and how a shard is read."""

    shard_names = ("low", "high")

    def read_shard(self, shard_name: str, row: int) -> Iterator[dict[str, Any]]:
        first = 0 if shard_name == "low" else 600
        for x in range(first + row, first + 600):
            yield {"x": x * x}


def test_a_source_is_read_shard_by_shard() -> None:
    source = numbers(10, num_shards=3)
    assert source.shard_names == ["memory:0", "memory:1", "memory:2"]
    assert source.num_shards == 3 == source.num_shards()
    assert xs(source) == list(range(10))
    assert xs(source.open_shard("memory:1")) == [3, 4, 5]
    assert xs(source.iter_shards([2, 0], start_shard=0, start_row=2)) == [8, 9, 0, 1, 2]
    assert xs(source.iter_shards([2, 0], start_shard=1, start_row=1)) == [1, 2]
    assert len(source) == 10
    assert source.get_shard_info("memory:2") == ShardInfo(2, "memory:2", num_rows=4)


def test_a_shard_opens_at_every_row_and_not_beyond_the_end() -> None:
    source = numbers(10)
    for row in range(11):
        assert xs(source.open_shard_at_row("memory:0", row=row)) == list(range(row, 10))
    for row in (-1, 11):
        with pytest.raises(SampleIndexError, match=f"row {row} of shard 'memory:0' does not exist"):
            source.open_shard_at_row("memory:0", row=row)


def test_a_name_that_no_shard_has_is_an_error_that_names_one() -> None:
    with pytest.raises(ConfigError, match="no shard 'memory:11': did you mean 'memory:1'"):
        numbers(4, 2).open_shard("memory:11")
    with pytest.raises(ConfigError, match="has no shard"):
        numbers(4, 2).get_shard_info("nope")


def test_a_source_of_ones_own_needs_two_things() -> None:
    source = Squares()
    assert len(list(source)) == 1200
    assert next(source.open_shard_at_row("high", row=3)) == {"x": 603 * 603}
    with pytest.raises(TypeError, match="does not know how many samples"):
        len(source)
    assert source  # which does not ask for its length
    check_cut_anywhere(source.__iter__, places=[0, 1, 255, 256, 257, 599, 600, 601, 1199, 1200])


@given(count=st.integers(0, 40), num_shards=st.integers(1, 5))
def test_cut_anywhere(count: int, num_shards: int) -> None:
    source = numbers(count, num_shards)
    assert xs(check_cut_anywhere(source.__iter__)) == list(range(count))


def test_a_failing_source_fails_again_and_does_not_end() -> None:
    class Broken(ShardedSource):
        shard_names = ("a",)

        def read_shard(self, shard_name: str, row: int) -> Iterator[dict[str, Any]]:
            for x in range(row, 300):
                if x == 270:
                    raise OSError("the disk is gone")
                yield {"x": x}

    samples = iter(Broken())
    assert xs(samples.take(270)) == list(range(270))
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            next(samples)


def test_samples_that_come_slowly_are_given_as_they_come() -> None:
    made = 0

    class Slow(ShardedSource):
        shard_names = ("a",)

        def read_shard(self, shard_name: str, row: int) -> Iterator[dict[str, Any]]:
            nonlocal made
            for x in range(row, 20):
                time.sleep(0.11)
                made += 1
                yield {"x": x}

    samples = iter(Slow())
    for expected in range(1, 5):
        next(samples)
        assert made == expected


def test_reading_gives_copies() -> None:
    source = numbers(2)
    next(iter(source))["x"] = "changed"
    assert xs(source) == [0, 1]


def test_a_state_of_other_shards_is_refused() -> None:
    samples = iter(numbers(10, 5))
    samples.take(5)
    with pytest.raises(ResumeError, match="the state belongs to a source with other shards"):
        iter(numbers(10, 5, name="other")).load_state_dict(samples.state_dict())
    with pytest.raises(ResumeError, match="the state of|needs one with inner"):
        iter(numbers(10)).load_state_dict({"shard": "two"})


# --- One after the other ------------------------------------------------------------------------------------


def test_sources_with_equal_names_are_all_read() -> None:
    first, second, third = numbers(3), numbers(5), numbers(2)
    source = CompositeShardedSource([first, second, third])
    assert list(source.shard_names) == ["memory:0", "memory:0#2", "memory:0#3"]
    assert xs(source) == [*range(3), *range(5), *range(2)]
    assert xs(source.open_shard_at_row("memory:0#2", row=4)) == [4]
    assert len(source) == 10
    assert source.get_shard_info("memory:0#2") == ShardInfo(1, "memory:0#2", num_rows=5)
    check_cut_anywhere(source.__iter__)


def test_a_composite_needs_sources() -> None:
    with pytest.raises(ConfigError, match="at least one source"):
        CompositeShardedSource([])
    with pytest.raises(ConfigError, match="source is a list: pass a ShardedSource or a StreamingDataset"):
        CompositeShardedSource([[{"x": 1}]])  # type: ignore[list-item]


@given(count=st.integers(0, 12), num_shards=st.integers(1, 4), limit=st.integers(0, 15), is_known=st.booleans())
def test_the_first_samples(count: int, num_shards: int, limit: int, is_known: bool) -> None:
    inner: ShardedSource = numbers(count, num_shards)
    if not is_known:
        inner = inner.filter(lambda sample: True)
    source = LimitedShardedSource(inner, limit)
    expected = list(range(min(count, limit)))
    assert xs(check_cut_anywhere(source.__iter__)) == expected
    by_shard = [xs(source.open_shard(name)) for name in source.shard_names]
    assert [x for shard in by_shard for x in shard] == expected
    for name, whole in zip(source.shard_names, by_shard, strict=True):
        for row in range(len(whole) + 1):
            assert xs(source.open_shard_at_row(name, row)) == whole[row:]
        with pytest.raises(SampleIndexError):
            source.open_shard_at_row(name, len(whole) + 1)
    if is_known:
        assert len(source) == len(expected)
    else:
        with pytest.raises(TypeError):
            len(source)
