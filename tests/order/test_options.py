"""Where shards have any size, windows and lanes are bounded by bytes; where sizes do not count, nothing changes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.order.cursor import Cursor
from penstock.order.native import StreamPlan
from penstock.order.options import OrderOptions, StreamShards, default_lanes, default_window
from penstock.order.resume import resume

GB = 1 << 30
lengths = st.lists(st.integers(1, 10_000), min_size=1, max_size=300).map(lambda values: np.array(values, np.int64))


@given(lengths, st.sampled_from([1, 2, 8, 64]), st.integers(1, 4), st.integers(1, 4 * GB))
def test_windows_hold_no_more_than_fits(shards: np.ndarray, lanes: int, streams: int, size: int) -> None:
    window = default_window(shards, lanes, streams)
    bounded = default_window(shards, lanes, streams, np.full(len(shards), size))
    assert bounded <= window
    assert bounded >= min(window, 4)
    if bounded > 4:
        assert bounded * size * lanes * streams <= 16 * GB
    assert default_window(shards, lanes, streams, np.ones(len(shards), np.int64)) == window


def test_lanes_are_fewer_where_each_would_hold_too_much() -> None:
    shards = [np.full(10_000, 1000)]
    assert default_lanes(shards) == default_lanes(shards, [None]) == 64
    assert default_lanes(shards, [np.full(10_000, 1 << 20)]) == 64
    assert default_lanes(shards, [np.full(10_000, 256 << 20)]) == 8
    assert default_lanes(shards, [np.full(10_000, 8 * GB)]) == 1


def test_names_of_files_tell_runs_apart() -> None:
    def plan(**more: object) -> StreamPlan:
        stream = StreamShards(name="0", lengths=np.full(100, 50), **more)  # type: ignore[arg-type]
        return StreamPlan.make([stream], OrderOptions())

    assert plan().fingerprint == plan(sizes=np.full(100, 1000)).fingerprint
    assert len({plan().fingerprint, plan(content="a").fingerprint, plan(content="b").fingerprint}) == 3


def test_a_state_keeps_the_window_that_its_run_began_with() -> None:
    def plan(cost: int) -> StreamPlan:
        stream = StreamShards(name="0", lengths=np.full(970, 100), sizes=np.full(970, cost * (5 << 20)), content="a")
        return StreamPlan.make([stream], OrderOptions())

    begun, now = plan(1), plan(32)  # as 0.1.0.dev0 counted row groups, and as they are counted since
    assert (begun.num_lanes, begun.windows, now.num_lanes, now.windows) == (16, {"0": 41}, 8, {"0": 12})
    resumed, at = resume(now, begun.state_dict(Cursor(1, 3200)))
    assert resumed.order.ids(1, range(at.position, 9700)).tolist() == begun.order.ids(1, range(3200, 9700)).tolist()
