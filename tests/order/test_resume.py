from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ResumeError
from penstock.order.cursor import Cursor
from penstock.order.native import StreamPlan
from penstock.order.options import OrderOptions, StreamShards
from penstock.order.resume import resume
from penstock.order.schedule import MixSchedule
from penstock.order.weights import StreamWeight
from penstock.order.world import Seat, World

if TYPE_CHECKING:
    from penstock.types import Int64Array

SIZES = {"a": 600, "b": 300, "c": 40, "d": 200}
METHODS: list[dict[str, Any]] = [
    {},
    {"shuffle": False},
    {"batching_method": "stratified", "global_batch_size": 24},
    {"batching_method": "per_stream", "global_batch_size": 24},
    {"batching_method": "device_per_stream", "global_batch_size": 24, "device_batch_size": 3},
]


def make_plan(
    names: str = "abc",
    weights: dict[str, StreamWeight] | None = None,
    sizes: dict[str, int] | None = None,
    **options: Any,
) -> StreamPlan:
    streams = []
    for name in names:
        size = (sizes or SIZES)[name]
        bounds = [size * number // 8 for number in range(9)]
        ends = np.array(bounds, dtype=np.int64)
        lengths = ends[1:] - ends[:-1]
        weight = (weights or {}).get(name, StreamWeight())
        streams.append(StreamShards(name=name, lengths=lengths, weight=weight))
    if options.get("shuffle", True):
        options.setdefault("num_canonical_nodes", 4)
    return StreamPlan.make(streams, OrderOptions(**options))


def save(plan: StreamPlan, at: Cursor) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(plan.state_dict(at)))
    return loaded


def name_samples(plan: StreamPlan, ids: Int64Array) -> list[tuple[str, int]]:
    starts = np.cumsum([0, *(stream.num_samples for stream in plan.streams)])
    numbers = np.searchsorted(starts, ids, side="right") - 1
    return [(plan.streams[number].name, int(id_ - starts[number])) for number, id_ in zip(numbers, ids, strict=True)]


def read(plan: StreamPlan, epoch: int, begin: int, end: int | None = None) -> list[tuple[str, int]]:
    stop = plan.epoch_size(epoch) if end is None else end
    return name_samples(plan, plan.order.ids(epoch, range(begin, stop)))


@pytest.mark.parametrize("options", METHODS)
def test_a_state_brings_back_seed_lanes_windows_and_place(options: dict[str, Any]) -> None:
    plan = make_plan(**options, seed=5)
    resumed, at = resume(make_plan(**{**options, "num_canonical_nodes": None}, seed=77), save(plan, Cursor(2, 48)))
    assert at == Cursor(2, 48)
    assert resumed.fingerprint == plan.fingerprint
    assert read(resumed, 2, 48) == read(plan, 2, 48)


@pytest.mark.parametrize("options", METHODS)
def test_a_new_stream_joins_and_the_others_go_on(options: dict[str, Any]) -> None:
    plan = make_plan(**options)
    before = read(plan, 0, 0, 240)
    with pytest.raises(ResumeError, match="allow_mix_change=True"):
        resume(make_plan("abcd", **options), save(plan, Cursor(0, 240)))
    with pytest.warns(UserWarning, match="own position"):
        resumed, at = resume(make_plan("abcd", **options), save(plan, Cursor(0, 240)), allow_mix_change=True)
    after = read(resumed, 0, at.position)
    assert len(set(before + after)) == len(before + after)
    assert any(name == "d" for name, _ in after)
    assert {name for name, _ in read(resumed, 1, 0)} == set("abcd")
    # The changed run resumes like any other.
    again, _ = resume(make_plan("abcd", **options), save(resumed, Cursor(0, 288)))
    assert read(again, 0, 288) == read(resumed, 0, 288)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), lanes=st.sampled_from([1, 3, 4]))
def test_mixes_may_change_again_and_again(data: st.DataObject, lanes: int) -> None:
    plan = make_plan(num_canonical_nodes=lanes)
    position, seen = 0, []
    repeats = dict.fromkeys("abc", 1.0)
    for _ in range(3):
        stop = data.draw(st.integers(position, plan.epoch_size(0)))
        seen += read(plan, 0, position, stop)
        # Growing weights only: a stream that shrinks may have given too much already.
        repeats = {name: repeat + data.draw(st.sampled_from([0, 0.5])) for name, repeat in repeats.items()}
        weights = {name: StreamWeight(repeat=repeat) for name, repeat in repeats.items()}
        changed = make_plan(weights=weights, num_canonical_nodes=lanes)
        with_change = changed.mix != plan.mix
        if with_change:
            with pytest.warns(UserWarning, match="the mix changes"):
                plan, _ = resume(changed, save(plan, Cursor(0, stop)), allow_mix_change=True)
        position = stop
    seen += read(plan, 0, position)
    for name, repeat in repeats.items():
        times = np.bincount([row for stream, row in seen if stream == name], minlength=SIZES[name])
        assert times.sum() == int(repeat * SIZES[name])
        assert times.min() >= int(repeat)
        assert times.max() <= np.ceil(repeat)


def test_a_stream_may_leave() -> None:
    plan = make_plan()
    with pytest.warns(UserWarning, match="the mix changes"):
        resumed, at = resume(make_plan("ab"), save(plan, Cursor(0, 100)), allow_mix_change=True)
    before = [sample for sample in read(plan, 0, 0, 100) if sample[0] != "c"]
    everything = before + read(resumed, 0, at.position)
    assert sorted(everything) == [(name, row) for name in "ab" for row in range(SIZES[name])]


def test_proportions_take_effect_from_the_cursor_on() -> None:
    even = {name: StreamWeight(proportion=1) for name in "ab"}
    lopsided = {"a": StreamWeight(proportion=9), "b": StreamWeight(proportion=1)}
    plan = make_plan("ab", even, epoch_size=4000)
    changed = make_plan("ab", lopsided, epoch_size=4000)
    with pytest.warns(UserWarning, match="the mix changes"):
        resumed, at = resume(changed, save(plan, Cursor(0, 1000)), allow_mix_change=True)
    assert resumed.epoch_size(0) == 4000
    names = [name for name, _ in read(resumed, 0, at.position)]
    assert names.count("a") == 2700
    assert names.count("b") == 300


def test_a_schedule_resumes() -> None:
    schedule = MixSchedule(positions=(0, 900), proportions=((1, 0), (0, 1)), shape="cosine")
    plan = make_plan("ab", schedule=schedule, epoch_size=1000)
    resumed, at = resume(make_plan("ab", schedule=schedule, epoch_size=1000), save(plan, Cursor(0, 333)))
    assert read(resumed, 0, at.position) == read(plan, 0, 333)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "version 99"),
        ({"order": "mosaic"}, "set order='mosaic'"),
        ({"shuffle": False}, "set shuffle=False"),
        ({"batching_method": "per_stream"}, "set batching_method='per_stream'"),
        ({"streams": {"a": "0"}}, "shards of stream .* have changed"),
        ({"fingerprint": "0"}, "another dataset"),
        ({"epoch": -1}, "epoch=-1 instead of a whole number"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ResumeError, match=message):
        resume(make_plan(), {**save(make_plan(), Cursor(0, 10)), **change})


def test_fixed_batches_refuse_another_size_and_a_cut_batch() -> None:
    options: dict[str, Any] = {"batching_method": "stratified", "global_batch_size": 24}
    state = save(make_plan(**options), Cursor(0, 48))
    with pytest.raises(ResumeError, match="global_batch_size=24"):
        resume(make_plan(**{**options, "global_batch_size": 32}), state)
    with pytest.raises(ResumeError, match="inside a global batch"):
        make_plan(**options).batch(Cursor(0, 25), 0, Seat(world=World()), 24)


def test_a_partial_pass_in_stored_order_is_not_drawn_twice() -> None:
    half, more = {"a": StreamWeight(repeat=1.5)}, {"a": StreamWeight(repeat=1.9)}
    state = save(make_plan("ab", half, shuffle=False), Cursor(0, 700))
    changed = make_plan("ab", more, shuffle=False)
    with pytest.warns(UserWarning, match="the mix"), pytest.raises(ResumeError, match="partial pass"):
        resume(changed, state, allow_mix_change=True)


def test_an_unshuffled_mix_in_lanes_cannot_change() -> None:
    plan = make_plan(shuffle=False, num_canonical_nodes=2)
    state = save(plan, Cursor(0, 100))
    changed = make_plan("ab", shuffle=False)
    with pytest.warns(UserWarning, match="the mix"), pytest.raises(ResumeError, match="one lane"):
        resume(changed, state, allow_mix_change=True)
