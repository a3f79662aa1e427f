"""The shuffle algorithms: permutations, and py1e the same as its plain definition."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.errors import ConfigError
from penstock.order.mosaic.shuffle import (
    ShuffleRule,
    WordSorter,
    divide,
    lay_end_to_end,
    shuffle_algorithm,
    shuffle_and_divide,
    shuffle_py1e,
)

ALGORITHMS = ("py1e", "py1br", "py1b", "py1s", "py2s", "naive")
units_lists = st.lists(st.integers(1, 60), min_size=1, max_size=30)

pytestmark = pytest.mark.filterwarnings("ignore:.*longer than a shuffle block")


def sort_whole_nodes(units: Any, rule: ShuffleRule) -> Any:
    """py1e by its definition, with one sort for each canonical node."""
    parts, draws = shuffle_and_divide(units, rule)
    order = []
    for part in parts:
        values, num_samples = [], part.num_samples
        for begin, size in zip(part.begins, part.sizes, strict=True):
            positions = np.arange(begin, begin + size)
            draws.shuffle(positions)
            values.append(positions)
        places, begin = np.arange(num_samples, dtype=np.float64), 0
        for size in part.sizes:
            block = draws.integers(int(0.75 * rule.block_size), int(1.25 * rule.block_size))
            way = max((block - size) / 2, 0)
            low, high = max(-way, -begin), min(way, num_samples - begin - size)
            places[begin : begin + size] += draws.uniform(low, high, size)
            begin += size
        order.append(np.concatenate(values)[np.argsort(places, kind="stable")])
    return np.concatenate(order)


@given(units=units_lists, num_nodes=st.integers(1, 9), seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=60)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_position_comes_once(name: str, units: list[int], num_nodes: int, seed: int, data: st.DataObject) -> None:
    num_nodes = min(num_nodes, sum(units))
    block_size = data.draw(st.integers(2, 100))
    rule = ShuffleRule(num_canonical_nodes=num_nodes, seed=seed, epoch=3, block_size=block_size)
    order = shuffle_algorithm(name)(np.array(units), rule)
    assert sorted(order.tolist()) == list(range(sum(units)))


@given(units=units_lists, num_parts=st.integers(1, 12))
def test_parts_are_equal_up_to_one_and_cover_everything(units: list[int], num_parts: int) -> None:
    parts = divide(lay_end_to_end(np.array(units)), num_parts)
    lengths = [part.num_samples for part in parts]
    assert len(parts) == num_parts
    assert max(lengths) - min(lengths) <= 1
    covered = [
        position
        for part in parts
        for begin, size in zip(part.begins.tolist(), part.sizes.tolist(), strict=True)
        for position in range(begin, begin + size)
    ]
    assert covered == list(range(sum(units)))


@given(
    unit=st.integers(20, 3000),
    block_size=st.integers(1, 40_000),
    seed=st.integers(0, 99),
    nodes=st.integers(1, 3),
)
@settings(max_examples=8, deadline=None)
def test_py1e_in_many_sorts_is_py1e_in_one(unit: int, block_size: int, seed: int, nodes: int) -> None:
    # Some half a million samples take several sorts; a last unit of another size breaks the rhythm.
    units = np.array([unit] * (500_000 // unit) + [unit // 2 + 1])
    rule = ShuffleRule(num_canonical_nodes=nodes, seed=seed, epoch=1, block_size=block_size)
    if unit == 1:
        units = units[:200_000]
    assert np.array_equal(shuffle_py1e(units, rule), sort_whole_nodes(units, rule))


def test_py1e_of_one_huge_shard_keeps_it_shuffled_in_itself() -> None:
    rule = ShuffleRule(num_canonical_nodes=1, seed=1, epoch=0, block_size=1000)
    with pytest.warns(UserWarning, match="1 of 1 runs of samples are longer than a shuffle block of about 1000"):
        order = shuffle_py1e(np.array([700_000]), rule)
    assert np.array_equal(order, sort_whole_nodes(np.array([700_000]), rule))


def test_py1e_needs_little_more_than_its_result() -> None:
    units = np.full(2000, 1000)
    rule = ShuffleRule(num_canonical_nodes=1, seed=1, epoch=0, block_size=20_000)
    tracemalloc.start()
    order = shuffle_py1e(units, rule)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert order.dtype == np.int32
    # The definition holds seven arrays of eight bytes for each sample.
    assert peak < 2.5 * order.nbytes


@given(
    places=arrays.arrays(
        np.float64,
        st.integers(0, 200),
        elements=st.one_of(
            st.floats(0, 1e9),
            st.integers(0, 5).map(float),
            st.integers(0, 64).map(lambda n: 1e8 + n * 2**-26),
        ),
    )
)
@settings(max_examples=300)
def test_words_sort_like_numbers(places: Any) -> None:
    sorter = WordSorter(200)
    assert sorter(places).tolist() == np.argsort(places, kind="stable").tolist()


def test_picking_moves_elements_to_the_front() -> None:
    sorter = WordSorter(6)
    for dtype in (np.float64, np.int32, np.int64):
        array = np.array([5, 6, 7, 8, 9, 10], dtype)
        sorter.pick(array, np.array([4, 1, 0]))
        assert array[:3].tolist() == [9, 6, 5]


@pytest.mark.parametrize(
    ("name", "block_size", "message"),
    [
        ("py1e", 0, "py1e needs at least 1"),
        ("py1br", 0, "py1br needs at least 2"),
        ("py1br", 1, "py1br needs at least 2"),
        ("py1b", 0, "py1b needs at least 1"),
    ],
)
def test_blocks_too_small(name: str, block_size: int, message: str) -> None:
    rule = ShuffleRule(num_canonical_nodes=1, seed=0, epoch=0, block_size=block_size)
    with pytest.raises(ConfigError, match=message):
        shuffle_algorithm(name)(np.array([10, 10]), rule)


def test_py1e_refuses_a_node_without_samples() -> None:
    rule = ShuffleRule(num_canonical_nodes=4, seed=0, epoch=0, block_size=10)
    with pytest.raises(ConfigError, match="gets none of the 3 samples"):
        shuffle_py1e(np.array([1, 2]), rule)


def test_unknown_algorithm() -> None:
    with pytest.raises(ConfigError, match="unknown shuffle_algo 'py3'"):
        shuffle_algorithm("py3")
