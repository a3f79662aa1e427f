"""The order of video: every frame once, each stretch within a short time, among those of many other episodes."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.order.pool import SLICE, KeyframeOrder

_LENGTHS = st.lists(st.integers(0, 90), min_size=1, max_size=30).filter(any)
_SEEDS = st.integers(0, 2**32)


def make(
    lengths: list[int], *, seed: int = 1, pool: int = 8, num_lanes: int = 1, step: int | None = None
) -> KeyframeOrder:
    """Make an order whose stretches begin every so many samples, counted from the first of each episode."""
    starts = np.cumsum([0, *lengths])
    begins = None
    if step is not None:
        begins = np.concatenate([np.arange(a, b, step) for a, b in pairwise(starts)])
    return KeyframeOrder(np.array(lengths), seed=seed, stream="one", num_lanes=num_lanes, window=pool, stretches=begins)


@given(
    lengths=_LENGTHS,
    seed=_SEEDS,
    pool=st.integers(1, 200),
    num_lanes=st.integers(1, 5),
    step=st.one_of(st.none(), st.integers(1, 40)),
    data=st.data(),
)
def test_every_frame_comes_once_and_any_positions_are_found_without_those_before(
    lengths: list[int], seed: int, pool: int, num_lanes: int, step: int | None, data: st.DataObject
) -> None:
    total = sum(lengths)
    whole = make(lengths, seed=seed, pool=pool, num_lanes=num_lanes, step=step).ids(1, 0, range(total))
    assert sorted(whole.tolist()) == list(range(total))
    begin, stride = data.draw(st.integers(0, total)), data.draw(st.integers(1, 5))
    again = make(lengths, seed=seed, pool=pool, num_lanes=num_lanes, step=step)
    assert again.ids(1, 0, range(begin, total, stride)).tolist() == whole[begin::stride].tolist()


def test_a_stretch_leaves_within_a_short_time_among_those_of_the_whole_pool() -> None:
    lengths, pool, step = [300] * 128, 64, 30
    ids = make(lengths, pool=pool, step=step).ids(0, 0, range(300 * 128))
    places = np.empty_like(ids)
    places[ids] = np.arange(len(ids))
    by_stretch = places.reshape(-1, step)
    assert int((by_stretch.max(axis=1) - by_stretch.min(axis=1)).max()) < pool * (step + 3 * SLICE)
    for batch in np.split(ids // 300, 300 * 128 // 64):
        assert len(set(batch.tolist())) > 32


def test_frames_of_a_stretch_that_is_longer_than_a_slice_leave_window_by_window() -> None:
    ids = make([250] * 64, pool=64).ids(0, 0, range(250 * 64))
    windows = np.empty_like(ids)
    windows[ids] = np.arange(len(ids)) // (64 * SLICE)
    for episode in windows.reshape(64, 250):
        assert (np.diff(episode) >= 0).all()


def test_each_lane_keeps_to_its_own_stretches() -> None:
    lengths, step, num_lanes = [300] * 160, 30, 4
    order = make(lengths, pool=64, num_lanes=num_lanes, step=step)
    used = [set((order.ids(0, 0, range(lane, 48000, num_lanes)) // step).tolist()) for lane in range(num_lanes)]
    assert sum(map(len, used)) <= 1600 + 64  # but for those at the ends of slots


def test_few_episodes_are_needed_at_a_time() -> None:
    lengths, pool = [50 + 7 * (number % 9) for number in range(300)], 16
    ids = make(lengths, pool=pool, step=10).ids(0, 0, range(sum(lengths)))
    episodes = np.searchsorted(np.cumsum(lengths), ids, side="right")
    for window in np.array_split(episodes, sum(lengths) // (pool * SLICE)):
        assert len(set(window.tolist())) <= 3 * pool


def test_a_large_pool_has_several_episodes_in_each_slot() -> None:
    ids = make([60] * 1024, pool=512, step=30).ids(0, 0, range(60 * 1024))
    first = ids[: 60 * 512] // 60
    assert len(set(first.tolist())) >= 500
    window = ids[: 64 * SLICE] // 60
    assert 64 <= len(set(window.tolist())) <= 3 * 64


def test_epochs_seeds_and_passes_differ() -> None:
    orders = {
        make([30] * 20, seed=seed).ids(epoch, pass_id, range(600)).tobytes()
        for seed, epoch, pass_id in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]
    }
    assert len(orders) == 4


def test_a_place_far_into_a_million_episodes_is_found_at_once() -> None:
    order = KeyframeOrder(
        np.full(1_000_000, 300),
        seed=1,
        stream="one",
        num_lanes=8,
        window=64,
        stretches=np.arange(0, 300_000_000, 30),
    )
    begin = time.process_time()
    ids = order.ids(0, 0, range(270_000_000, 270_002_048))
    print(f"{time.process_time() - begin:.3f} s")
    assert len(set(ids.tolist())) == 2048
