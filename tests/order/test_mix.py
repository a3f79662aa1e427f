from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.order.lanes import lane_length
from penstock.order.mix import Mixed, Mixer
from penstock.order.schedule import MixSchedule
from penstock.order.weights import StreamWeight, apportion, count_samples, read_epoch_size

if TYPE_CHECKING:
    from fractions import Fraction

    from penstock.types import Int64Array

COUNTS = st.one_of(
    st.lists(st.integers(0, 400), min_size=1, max_size=12),
    st.lists(st.sampled_from([0, 1, 2, 3, 1000]), min_size=1, max_size=20),
    st.lists(st.integers(1, 4), min_size=20, max_size=60),
).filter(lambda counts: sum(counts) > 0)


def read_all(mixer: Mixer) -> tuple[Int64Array, Int64Array]:
    streams = np.empty(mixer.size, dtype=np.int64)
    indexes = np.empty(mixer.size, dtype=np.int64)
    for lane in range(mixer.num_lanes):
        row = 0
        while row < lane_length(mixer.size, mixer.num_lanes, lane):
            mixed = mixer.rows(lane, row)
            stop = row + mixed.num_rows
            streams[lane :: mixer.num_lanes][row:stop], indexes[lane :: mixer.num_lanes][row:stop] = by_row(mixed)
            row = stop
    return streams, indexes


def by_row(mixed: Mixed) -> tuple[Int64Array, Int64Array]:
    streams, indexes = np.full((2, mixed.num_rows), -1, dtype=np.int64)
    for stream, rows, numbers in mixed.parts:
        assert (np.diff(rows) > 0).all()
        streams[rows], indexes[rows] = stream, numbers
    assert (streams >= 0).all()
    return streams, indexes


@settings(max_examples=40, deadline=None)
@given(counts=COUNTS, lanes=st.integers(1, 8), rows=st.integers(1, 30), key=st.integers(0, 99))
def test_counts_are_exact_and_each_stream_goes_in_order(counts: list[int], lanes: int, rows: int, key: int) -> None:
    mixer = Mixer(counts, num_lanes=lanes, block_rows=rows, key=key)
    streams, indexes = read_all(mixer)
    assert np.bincount(streams, minlength=len(counts)).tolist() == counts
    for stream in range(len(counts)):
        if mixer.is_small[stream]:
            assert indexes[streams == stream].tolist() == list(range(counts[stream]))
        else:
            for lane in range(lanes):
                mine = indexes[lane::lanes][streams[lane::lanes] == stream]
                assert mine.tolist() == list(range(len(mine)))


@settings(max_examples=40, deadline=None)
@given(counts=COUNTS, lanes=st.integers(1, 8), rows=st.integers(1, 30))
def test_every_batch_holds_its_share_within_two_samples(counts: list[int], lanes: int, rows: int) -> None:
    mixer = Mixer(counts, num_lanes=lanes, block_rows=rows, key=1)
    streams, _ = read_all(mixer)
    size = lanes * rows
    for start in range(0, mixer.size, size):
        batch = streams[start : start + size]
        share = np.array(counts) * len(batch) / mixer.size
        assert np.abs(np.bincount(batch, minlength=len(counts)) - share).max() <= 2


@settings(max_examples=25, deadline=None)
@given(counts=COUNTS, lanes=st.integers(1, 8), rows=st.integers(1, 30), cut=st.floats(0, 1))
def test_what_was_taken_is_known_at_every_position(counts: list[int], lanes: int, rows: int, cut: float) -> None:
    mixer = Mixer(counts, num_lanes=lanes, block_rows=rows, key=1)
    streams, _ = read_all(mixer)
    position = int(cut * mixer.size)
    for stop in (position, mixer.size):
        by_lane, small = mixer.taken_at(stop)
        for lane in range(lanes):
            seen = np.bincount(streams[lane:stop:lanes], minlength=len(counts))
            assert (by_lane[:, lane] == np.where(mixer.is_small, 0, seen)).all()
        seen = np.bincount(streams[:stop], minlength=len(counts))
        assert (by_lane.sum(axis=1) + small == seen).all()


def test_mixing_is_exact_and_direct_at_a_trillion() -> None:
    counts = [10**12 - 10**9 - 3, 10**9, 2, 1]
    mixer = Mixer(counts, num_lanes=64, block_rows=4096, key=1)
    by_lane, small = mixer.taken(mixer.num_blocks)
    tail = np.concatenate([by_row(mixer.rows(lane, mixer.num_blocks * 4096))[0] for lane in range(64)])
    taken = by_lane.sum(axis=1) + small
    assert (taken + np.bincount(tail, minlength=4)).tolist() == counts
    half, _ = by_row(mixer.rows(3, 2**32))
    share = np.bincount(half, minlength=4)[1] / len(half)
    assert share == pytest.approx(0.001, abs=1 / 4096)


def test_rare_streams_appear_all_along() -> None:
    mixer = Mixer([100_000, 50, 7], num_lanes=4, block_rows=8, key=3)
    streams, _ = read_all(mixer)
    for stream, count in ((1, 50), (2, 7)):
        places = np.flatnonzero(streams == stream) / mixer.size
        gaps = np.diff([0, *places, 1])
        assert gaps.max() < 3 / count


def test_weights_become_exact_counts() -> None:
    def counted(*weights: StreamWeight, sizes: list[int], epoch_size: int | None = None) -> list[int]:
        return count_samples(weights, sizes, epoch_size)

    part, rest = StreamWeight(proportion=1), StreamWeight(proportion=2)
    assert counted(part, rest, sizes=[10, 20], epoch_size=100) == [33, 67]
    assert counted(part, rest, sizes=[10, 20]) == [10, 20]
    assert counted(StreamWeight(), StreamWeight(), sizes=[10, 30], epoch_size=8) == [2, 6]
    assert counted(StreamWeight(repeat=2.5), StreamWeight(choose=3), StreamWeight(), sizes=[4, 9, 7]) == [
        10,
        3,
        7,
    ]
    tiny = StreamWeight(proportion=1e-12)
    assert counted(tiny, StreamWeight(proportion=1), sizes=[5, 5], epoch_size=10**13) == [10, 10**13 - 10]


@given(
    shares=st.lists(st.fractions(0, 100), min_size=1, max_size=9).filter(lambda shares: sum(shares) > 0),
    total=st.integers(0, 10**15),
)
def test_apportioning_is_off_by_less_than_one(shares: list[Fraction], total: int) -> None:
    counts = apportion(shares, total)
    assert sum(counts) == total
    for count, share in zip(counts, shares, strict=True):
        assert abs(count - total * share / sum(shares)) < 1


@pytest.mark.parametrize(
    ("weights", "sizes", "epoch_size", "message"),
    [
        ([StreamWeight(proportion=1), StreamWeight()], [1, 1], None, "every stream a proportion, or none"),
        ([StreamWeight(repeat=1)], [1], 5, "leave out epoch_size"),
        ([StreamWeight(choose=3)], [0], None, "is empty"),
        ([StreamWeight(proportion=0)], [4], None, "all proportions are 0"),
        ([StreamWeight(repeat=0)], [4], None, "above 0"),
    ],
)
def test_weights_that_make_no_sense_are_refused(
    weights: list[StreamWeight], sizes: list[int], epoch_size: int | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        count_samples(weights, sizes, epoch_size)
    with pytest.raises(ConfigError, match="one weight"):
        StreamWeight(proportion=1, repeat=2)
    with pytest.raises(ConfigError, match="is not a weight"):
        StreamWeight(repeat=-1)


def test_counts_are_read_as_people_write_them() -> None:
    assert StreamWeight.of(choose="1.5k").choose == 1500
    assert [read_epoch_size(value) for value in (None, 7, 1e8, "1.5b")] == [None, 7, 10**8, 1_500_000_000]
    with pytest.warns(DeprecationWarning, match="choose"):
        assert StreamWeight.of(samples=5).choose == 5
    with pytest.warns(DeprecationWarning, match="epoch_size"):
        assert read_epoch_size(None, samples_per_epoch=12) == 12
    with pytest.raises(ConfigError, match="nothing to train on"):
        read_epoch_size(0)


@pytest.mark.parametrize("shape", ["step", "linear", "cosine"])
def test_a_schedule_follows_its_proportions(shape: str) -> None:
    schedule = MixSchedule(
        positions=(0, 4000, 8000),
        proportions=((1, 0), (0.5, 0.5), (0, 1)),
        shape=shape,  # type: ignore[arg-type]
    )
    segments = schedule.segments(0, 10_000)
    ends = [start for start, _ in segments[1:]] + [10_000]
    assert all(sum(counts) == end - start for (start, counts), end in zip(segments, ends, strict=True))
    first = sum(counts[0] for start, counts in segments if start < 4000)
    assert first == pytest.approx(4000 if shape == "step" else 3000, abs=20)
    assert sum(counts[0] for start, counts in segments if start >= 8000) == 0
    # Cut anywhere, the counts of later segments are within a sample of the same.
    again = dict(schedule.segments(8000, 10_000))
    assert again[8000] == (0, 2000)


def test_a_schedule_is_checked() -> None:
    with pytest.raises(ConfigError, match="start with 0"):
        MixSchedule(positions=(5,), proportions=((1,),))
    with pytest.raises(ConfigError, match="one number per stream"):
        MixSchedule(positions=(0, 9), proportions=((1, 1), (1,)))
    with pytest.raises(ConfigError, match="unknown"):
        MixSchedule(positions=(0,), proportions=((1,),), shape="cubic")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a larger block"):
        MixSchedule(positions=(0, 10**9), proportions=((1, 0), (0, 1)), shape="linear", block=1).segments(0, 10**9)
