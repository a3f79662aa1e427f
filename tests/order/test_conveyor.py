from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from benchmarks.quality import measure_traffic
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.order.conveyor import Conveyor
from penstock.order.id_spans import IdSpans
from penstock.order.lanes import lane_length, lane_start
from penstock.order.options import default_lanes, default_window

LENGTHS = st.one_of(
    st.lists(st.integers(0, 200), min_size=1, max_size=60),
    st.lists(st.sampled_from([0, 1, 5, 40_000]), min_size=1, max_size=12),
    st.builds(lambda length, number: [length] * number, st.integers(1, 300), st.integers(1, 60)),
).filter(lambda lengths: sum(lengths) > 0)


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, lanes=st.integers(1, 9), window=st.integers(1, 80), seed=st.integers(0, 99))
def test_an_epoch_has_every_sample_once(lengths: list[int], lanes: int, window: int, seed: int) -> None:
    order = Conveyor(np.array(lengths), seed=seed, num_lanes=lanes, window=window)
    ids = order.ids(0, 0, range(order.num_samples))
    assert (np.sort(ids) == np.arange(order.num_samples)).all()


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, lanes=st.integers(1, 9), window=st.integers(1, 80), data=st.data())
def test_any_place_is_reached_directly(lengths: list[int], lanes: int, window: int, data: st.DataObject) -> None:
    order = Conveyor(np.array(lengths), seed=1, num_lanes=lanes, window=window)
    ids = order.ids(2, 1, range(order.num_samples))
    start = data.draw(st.integers(0, order.num_samples))
    part = range(start, order.num_samples, data.draw(st.integers(1, 17)))
    fresh = Conveyor(np.array(lengths), seed=1, num_lanes=lanes, window=window)
    assert (fresh.ids(2, 1, part) == ids[start :: part.step]).all()


@settings(max_examples=40, deadline=None)
@given(lengths=LENGTHS, lanes=st.integers(1, 9), window=st.integers(1, 80))
def test_a_lane_keeps_to_its_own_run_of_shards(lengths: list[int], lanes: int, window: int) -> None:
    order = Conveyor(np.array(lengths), seed=1, num_lanes=lanes, window=window)
    size = order.num_samples
    spans = IdSpans(np.array(lengths))
    touched = [set(spans.locate(order.ids(0, 0, range(lane, size, lanes)))[0].tolist()) for lane in range(lanes)]
    # Lanes cut the sequence of shards: no more than one shard is shared at each cut.
    assert sum(map(len, touched)) <= len(set().union(*touched)) + lanes - 1


def test_a_trillion_samples_are_reached_as_fast_as_a_million() -> None:
    order = Conveyor(np.full(10**6, 10**6), seed=1, num_lanes=64, window=8)
    assert order.num_samples == 10**12
    for place in (0, 10**11 + 7, 10**12 - 640):
        ids = order.ids(0, 0, range(place, place + 640))
        assert len(np.unique(ids)) == 640
        assert 0 <= ids.min() <= ids.max() < 10**12


def test_one_enormous_shard_is_shuffled_in_parts() -> None:
    order = Conveyor(np.array([3, 10**9, 5]), seed=1, num_lanes=2, window=4)
    ids = order.ids(0, 0, range(10**8, 10**8 + 100_000))
    assert len(np.unique(ids)) == len(ids)
    assert (order.ids(0, 0, range(10**8 + 50_000, 10**8 + 50_100)) == ids[50_000:50_100]).all()


def test_passes_epochs_seeds_and_streams_have_their_own_order() -> None:
    lengths = np.full(30, 20)

    def first(seed: int, stream: str, epoch: int, pass_id: int) -> bytes:
        return Conveyor(lengths, seed=seed, stream=stream).ids(epoch, pass_id, range(600)).tobytes()

    orders = {first(42, "a", 0, 0), first(42, "a", 1, 0), first(42, "a", 0, 1), first(43, "a", 0, 0)}
    assert len(orders | {first(42, "b", 0, 0)}) == 5


def test_the_order_is_the_same_in_every_process() -> None:
    script = (
        "import numpy as np; from penstock.order.conveyor import Conveyor;"
        "print(Conveyor(np.arange(50), seed=3, stream='é', num_lanes=4).ids(1, 0, range(1225)).tolist())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(seen) == 1


@pytest.mark.parametrize("kind", ["equal", "odd", "unequal"])
@pytest.mark.parametrize("num_nodes", [8, 64])
def test_a_node_fetches_hardly_more_than_it_needs(kind: str, num_nodes: int) -> None:
    num_shards = 40 * num_nodes + 3 * (kind == "odd")
    drawn = np.random.default_rng(5).lognormal(0, 1, num_shards)
    lengths = (drawn * 60 + 1).astype(np.int64) if kind == "unequal" else np.full(num_shards, 61)
    order = Conveyor(lengths, seed=1, num_lanes=num_nodes, window=8)
    ids = order.ids(0, 0, range(order.num_samples))
    traffic = measure_traffic(ids, IdSpans(lengths), 64 * num_nodes, num_nodes, prefetch_steps=2)
    assert traffic.fetched <= 1.05


def test_shards_come_and_go_a_few_at_a_time() -> None:
    lengths = np.full(640, 100)
    order = Conveyor(lengths, seed=1, num_lanes=1, window=16)
    traffic = measure_traffic(order.ids(0, 0, range(64_000)), IdSpans(lengths), 100, 1, prefetch_steps=0)
    assert traffic.peak_new_shards <= 2
    assert traffic.peak_shards_held <= 18


def test_defaults_come_from_the_index_alone() -> None:
    assert [default_lanes([np.full(count, 9)]) for count in (1, 79, 80, 320, 2560, 10**6)] == [
        1,
        1,
        2,
        8,
        64,
        64,
    ]
    assert default_window(np.full(2560, 1000), 64, 1) == 8
    assert default_window(np.full(50, 1000), 1, 1) == 256
    assert default_window(np.full(10**6, 1), 64, 1) == 1024


def test_lanes_are_equal_up_to_one() -> None:
    for size in range(40):
        lengths = [lane_length(size, 7, lane) for lane in range(7)]
        assert sum(lengths) == size
        assert max(lengths) - min(lengths) <= 1
        assert [lane_start(size, 7, lane) for lane in range(7)] == np.cumsum([0, *lengths])[:-1].tolist()


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 or more"):
        Conveyor(np.array([1]), seed=0, window=0)
