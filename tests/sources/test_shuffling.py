"""The shuffle buffer: it mixes like a reservoir of its size, holds what it says, and goes on anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from benchmarks.shuffle_buffer import reservoir

from penstock.sources.iterators import RowStage, SampleIterator
from penstock.sources.shuffling import ShuffledStage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.types import Int64Array


def buffer_over(count: int, size: int, key: int = 1, **options: Any) -> SampleIterator:
    def open_rows(row: int) -> Iterator[list[Any]]:
        for begin in range(row, count, 10):
            yield [{"x": x, "text": "a" * 100} for x in range(begin, min(begin + 10, count))]

    return SampleIterator(ShuffledStage(RowStage(open_rows), num_rows=size, key=key, **options))


def order_of(samples: SampleIterator) -> Int64Array:
    order = [sample["x"] for sample in samples]
    assert sorted(order) == list(range(len(order)))
    return np.array(order)


def measured(orders: list[Int64Array]) -> tuple[float, float, float]:
    """Return correlation with the input, mean displacement, and its deviation."""
    inputs = np.arange(len(orders[0]))
    shifts = [order - inputs for order in orders]
    correlation = np.mean([np.corrcoef(order, inputs)[0, 1] for order in orders])
    return float(correlation), float(np.abs(shifts).mean()), float(np.std(shifts))


@pytest.mark.parametrize(
    ("count", "size"), [(600, 2), (600, 4), (600, 8), (1000, 100), (1000, 500), (500, 500), (300, 900)]
)
def test_a_buffer_mixes_like_a_reservoir_of_its_size(count: int, size: int) -> None:
    ours = measured([order_of(buffer_over(count, size, key)) for key in range(15)])
    theirs = measured([reservoir(count, size, seed) for seed in range(15)])
    assert abs(ours[0] - theirs[0]) < 0.06
    assert ours[1] == pytest.approx(theirs[1], rel=0.15)
    assert ours[2] == pytest.approx(theirs[2], rel=0.1)


def test_a_buffer_of_one_changes_nothing() -> None:
    assert order_of(buffer_over(100, 1)).tolist() == list(range(100))


@pytest.mark.parametrize(("size", "most"), [(4, 8), (64, 96), (1000, 1250)])
def test_a_buffer_holds_its_size_and_what_it_reads(size: int, most: int) -> None:
    alive: set[int] = set()

    class Tracked:
        def __init__(self) -> None:
            alive.add(id(self))

        def __del__(self) -> None:
            alive.discard(id(self))

    def open_rows(row: int) -> Iterator[list[Any]]:
        for _ in range(row, 6 * size):
            yield [{"x": Tracked()}]

    samples = SampleIterator(ShuffledStage(RowStage(open_rows), num_rows=size, key=1))
    counts = []
    while samples.take(1):
        counts.append(len(alive))
    counts = counts[: 4 * size]
    assert size < np.mean(counts) < 1.2 * most  # some that were given stay until those beside them are
    assert max(counts) < 1.4 * most + 4


@pytest.mark.parametrize("options", [{}, {"num_bytes": 4000}], ids=["samples", "bytes"])
@pytest.mark.parametrize("size", [1, 3, 40, 10_000])
def test_it_goes_on_anywhere_in_the_same_order(size: int, options: dict[str, int]) -> None:
    whole = order_of(buffer_over(150, size, **options)).tolist()
    samples = buffer_over(150, size, **options)
    states = [samples.state_dict() for _ in samples]
    for given, state in list(enumerate(states, start=1))[::4]:
        again = buffer_over(150, size, **options)
        again.load_state_dict(state)
        assert [sample["x"] for sample in again] == whole[given:]


def test_a_limit_of_bytes_mixes_like_as_many_samples() -> None:
    sample_bytes = 64 + 64 + 32 + 64 + 148
    by_bytes = measured([order_of(buffer_over(600, 10**6, key, num_bytes=60 * sample_bytes)) for key in range(20)])
    by_count = measured([order_of(buffer_over(600, 60, key)) for key in range(20)])
    assert by_bytes == pytest.approx(by_count, rel=0.15)
