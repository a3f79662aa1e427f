"""The order of an episode pool: every frame once, few episodes at a time, any position by itself."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.order.pool import EpisodePool

_LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=40).filter(any)
_SEEDS = st.integers(0, 2**32)


def make(lengths: list[int], seed: int, pool: int) -> EpisodePool:
    return EpisodePool(np.array(lengths), seed=seed, stream="one", num_lanes=1, window=pool)


@given(lengths=_LENGTHS, seed=_SEEDS, pool=st.integers(1, 20), epoch=st.integers(0, 2))
def test_every_frame_comes_once_and_few_episodes_at_a_time(
    lengths: list[int], seed: int, pool: int, epoch: int
) -> None:
    ids = make(lengths, seed, pool).ids(epoch, 0, range(sum(lengths)))
    assert sorted(ids.tolist()) == list(range(sum(lengths)))
    episodes = np.searchsorted(np.cumsum(lengths), ids, side="right")
    first = {int(episode): int(np.argmax(episodes == episode)) for episode in set(episodes.tolist())}
    last = {episode: len(ids) - 1 - int(np.argmax(episodes[::-1] == episode)) for episode in first}
    for position in range(0, len(ids), 7):
        assert sum(first[episode] <= position <= last[episode] for episode in first) <= pool


@given(lengths=_LENGTHS, seed=_SEEDS, pool=st.integers(1, 20), data=st.data())
def test_any_positions_are_found_without_those_before(
    lengths: list[int], seed: int, pool: int, data: st.DataObject
) -> None:
    total = sum(lengths)
    begin, step = data.draw(st.integers(0, total)), data.draw(st.integers(1, 5))
    whole = make(lengths, seed, pool).ids(1, 0, range(total))
    assert make(lengths, seed, pool).ids(1, 0, range(begin, total, step)).tolist() == whole[begin::step].tolist()


def test_epochs_seeds_and_passes_differ() -> None:
    lengths = [30] * 20
    orders = {
        make(lengths, seed, 5).ids(epoch, pass_id, range(600)).tobytes()
        for seed, epoch, pass_id in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]
    }
    assert len(orders) == 4


def test_frames_of_a_pool_are_mixed_evenly() -> None:
    lengths = [100] * 8
    ids = make(lengths, 3, 8).ids(0, 0, range(800))
    for part in np.split(ids // 100, 8):  # of 100 draws, each episode has 12.5 on average
        assert np.bincount(part, minlength=8).min() >= 3
        assert np.bincount(part, minlength=8).max() <= 27


def test_episodes_enter_in_another_order_than_they_are_stored_in() -> None:
    first = make([10] * 100, 0, 10).ids(0, 0, range(100)) // 10
    assert len(set(first.tolist())) == 10
    assert set(first.tolist()) != set(range(10))


def test_a_million_episodes_are_resumed_by_arithmetic() -> None:
    order = make([3] * 1_000_000, 0, 64)
    position = 2_700_000
    few = order.ids(0, 0, range(position, position + 64))
    assert len(set(few.tolist())) == 64
    assert order.ids(0, 0, range(position + 10, position + 20)).tolist() == few[10:20].tolist()
