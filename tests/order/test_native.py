from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.order.cursor import Cursor
from penstock.order.native import StreamPlan
from penstock.order.options import OrderOptions, StreamShards
from penstock.order.plan import worker_batches
from penstock.order.schedule import MixSchedule
from penstock.order.weights import StreamWeight
from penstock.order.world import Seat, World, replicate, seats

if TYPE_CHECKING:
    from penstock.types import Int64Array

SIZES = (1000, 500, 37)
STARTS = np.cumsum([0, *SIZES])
WORLD = World(num_nodes=2, ranks_per_node=4, workers_per_rank=3)


def cut_evenly(size: int) -> Int64Array:
    bounds = np.array([size * shard // 11 for shard in range(12)], dtype=np.int64)
    return bounds[1:] - bounds[:-1]


def make_streams(*weights: StreamWeight) -> list[StreamShards]:
    return [
        StreamShards(
            name=f"s{number}",
            lengths=cut_evenly(size),
            weight=weights[number] if weights else StreamWeight(),
        )
        for number, size in enumerate(SIZES)
    ]


def plan_mix(*weights: StreamWeight, **options: object) -> StreamPlan:
    return StreamPlan.make(make_streams(*weights), OrderOptions(**options))  # type: ignore[arg-type]


def read_epoch(plan: StreamPlan, epoch: int = 0) -> Int64Array:
    return plan.order.ids(epoch, range(plan.epoch_size(epoch)))


def stream_of(ids: Int64Array) -> Int64Array:
    return np.searchsorted(STARTS, ids, side="right") - 1


@settings(max_examples=25, deadline=None)
@given(
    repeats=st.tuples(*[st.sampled_from([0, 0.3, 1, 2, 3.7])] * 3).filter(lambda repeats: sum(repeats) > 0),
    lanes=st.integers(1, 6),
    shuffle=st.booleans(),
    epoch=st.integers(0, 2),
)
def test_repeats_are_whole_passes_and_an_exact_part(
    repeats: tuple[float, ...], lanes: int, shuffle: bool, epoch: int
) -> None:
    weights = [StreamWeight(repeat=repeat) for repeat in repeats]
    plan = plan_mix(*weights, num_canonical_nodes=lanes, shuffle=shuffle)
    ids = read_epoch(plan, epoch)
    for number, (size, repeat) in enumerate(zip(SIZES, repeats, strict=True)):
        times = np.bincount(ids[stream_of(ids) == number] - STARTS[number], minlength=size)
        assert times.sum() == int(repeat * size)
        assert times.min() >= int(repeat)
        assert times.max() <= int(np.ceil(repeat))


def test_each_pass_of_a_repeated_stream_has_its_own_order() -> None:
    plan = StreamPlan.make(
        [StreamShards(name="a", lengths=np.full(10, 10), weight=StreamWeight(repeat=2))], OrderOptions()
    )
    ids = read_epoch(plan)
    assert sorted(ids[:100]) == sorted(ids[100:])
    assert (ids[:100] != ids[100:]).any()


def test_shares_hold_all_along_and_no_rank_sees_one_stream_only() -> None:
    plan = plan_mix(num_canonical_nodes=4)
    ids = read_epoch(plan)
    for rank in range(8):
        counts = np.bincount(stream_of(ids[rank::8]), minlength=3) / (len(ids) / 8)
        assert np.abs(counts - np.array(SIZES) / sum(SIZES)).max() < 0.05


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("lanes", [1, 4, 6])
def test_stratified_batches_hold_every_share(shuffle: bool, lanes: int) -> None:
    plan = plan_mix(batching_method="stratified", global_batch_size=24, num_canonical_nodes=lanes, shuffle=shuffle)
    ids = read_epoch(plan)
    assert sorted(ids) == list(range(sum(SIZES)))
    for start in range(0, len(ids) - 24, 24):
        counts = np.bincount(stream_of(ids[start : start + 24]), minlength=3)
        assert np.abs(counts - 24 * np.array(SIZES) / sum(SIZES)).max() <= 2


@pytest.mark.parametrize("shuffle", [True, False])
def test_per_stream_batches_hold_one_stream(shuffle: bool) -> None:
    plan = plan_mix(batching_method="per_stream", global_batch_size=24, num_canonical_nodes=4, shuffle=shuffle)
    streams = stream_of(read_epoch(plan)).reshape(-1, 24)
    assert (streams == streams[:, :1]).all()
    assert np.bincount(streams[:, 0]).tolist() == [size // 24 for size in SIZES]
    assert len(np.unique(read_epoch(plan))) == plan.epoch_size(0)


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_device_batches_hold_one_stream(nodes: int) -> None:
    plan = plan_mix(
        batching_method="device_per_stream", global_batch_size=24, device_batch_size=3, num_canonical_nodes=4
    )
    world = World(num_nodes=nodes, ranks_per_node=8 // nodes)
    seen = []
    for seat in seats(world):
        for step in range(plan.num_batches(Cursor(), seat, 24)):
            ids = plan.batch(Cursor(), step, seat, 24)
            assert len(ids) == 3
            assert len(set(stream_of(ids).tolist())) == 1
            seen.append(ids)
    together = np.concatenate(seen)
    assert len(np.unique(together)) == len(together) == plan.epoch_size(0)


def test_fixed_batches_say_so_when_asked_for_others() -> None:
    plan = plan_mix(batching_method="stratified", global_batch_size=24)
    with pytest.raises(ConfigError, match="global batches of 24, not 32"):
        plan.batch(Cursor(), 0, Seat(world=WORLD), 32)
    plan = plan_mix(batching_method="device_per_stream", global_batch_size=24, device_batch_size=3)
    with pytest.raises(ConfigError, match="use 8"):
        plan.batch(Cursor(), 0, Seat(world=World(ranks_per_node=4)), 24)
    with pytest.raises(ConfigError, match="too few for one batch"):
        read_epoch(plan_mix(batching_method="per_stream", global_batch_size=64))
    with pytest.raises(ConfigError, match="depends on the global batch"):
        OrderOptions(batching_method="per_stream")


@pytest.mark.parametrize("position", [0, 24, 35])
def test_the_end_of_the_epoch(position: int) -> None:
    world, at = World(num_nodes=2, ranks_per_node=3), Cursor(0, position)
    whole = read_epoch(plan_mix())
    left = len(whole) - position
    for end, equal in (("pad", True), ("drop", True), ("trim", True), ("uneven", False)):
        plan = plan_mix(epoch_end=end)
        by_rank = [
            np.concatenate([plan.batch(at, step, seat, 12) for step in range(plan.num_batches(at, seat, 12))])
            for seat in seats(world)
        ]
        lengths = {len(ids) for ids in by_rank}
        assert (len(lengths) == 1) == equal or left % 6 == 0
        total = sum(map(len, by_rank))
        assert total == {"pad": -(-left // 6) * 6, "drop": left // 12 * 12, "trim": left // 6 * 6, "uneven": left}[end]
        seen = np.unique(np.concatenate(by_rank))
        expected = whole[position : position + min(total, left)]
        assert set(expected.tolist()) <= set(seen.tolist())


def test_fewer_samples_than_ranks() -> None:
    plan = StreamPlan.make([StreamShards(name="few", lengths=np.array([2, 0, 1]))], OrderOptions())
    world = World(num_nodes=3, ranks_per_node=4)
    ids = [plan.batch(Cursor(), 0, seat, 24) for seat in seats(world)]
    assert [len(each) for each in ids] == [1] * 12
    assert np.bincount(np.concatenate(ids)).tolist() == [4, 4, 4]


def test_unshuffled_is_the_stored_order_on_every_world() -> None:
    plan = plan_mix(shuffle=False)
    assert (read_epoch(plan) == np.arange(sum(SIZES))).all()
    batch = np.stack([plan.batch(Cursor(), 3, seat, 16) for seat in seats(WORLD)])
    assert sorted(batch.ravel().tolist()) == list(range(48, 64))


def test_an_unshuffled_mix_is_laid_end_to_end() -> None:
    weights = [StreamWeight(repeat=2), StreamWeight(choose=100), StreamWeight()]
    plan = plan_mix(*weights, shuffle=False)
    first, second = read_epoch(plan, 0), read_epoch(plan, 1)
    assert first[:2000].tolist() == [*range(1000), *range(1000)]
    assert first[2100:].tolist() == list(range(1500, 1537))
    part = first[2000:2100]
    assert (np.diff(part) > 0).all()
    assert stream_of(part).tolist() == [1] * 100
    assert (part != second[2000:2100]).any()


def test_an_unshuffled_mix_in_lanes_is_still_complete() -> None:
    plan = plan_mix(shuffle=False, num_canonical_nodes=3)
    ids = read_epoch(plan)
    assert sorted(ids) == list(range(sum(SIZES)))
    assert ids[:6].tolist() == [0, 513, 1025, 1, 514, 1026]


def test_a_schedule_changes_the_mix_as_it_goes() -> None:
    schedule = MixSchedule(positions=(0, 3000, 6000), proportions=((1, 0, 0), (0, 1, 0), (0, 0, 1)), shape="linear")
    plan = plan_mix(schedule=schedule, epoch_size=4000, num_canonical_nodes=4)
    streams = np.concatenate([stream_of(read_epoch(plan, epoch)) for epoch in (0, 1)])
    assert len(streams) == 8000
    for start in range(0, 8000, 500):
        shares = np.bincount(streams[start : start + 500], minlength=3) / 500
        way = (start + 250) / 3000
        expected = [max(0, 1 - way), max(0, 1 - abs(way - 1)), min(1, max(0, way - 1))]
        assert np.abs(shares - expected).max() < 0.1
    again = plan_mix(schedule=schedule, epoch_size=4000, num_canonical_nodes=4)
    assert (again.order.ids(1, range(777, 900)) == read_epoch(plan, 1)[777:900]).all()


def test_workers_take_turns() -> None:
    plan = plan_mix()
    for worker in range(3):
        seat = Seat(world=WORLD, node=1, local_rank=2, worker=worker)
        mine = worker_batches(plan, Cursor(0, 16), range(3), seat, 16)
        assert len(mine) == 3
        for turn, ids in enumerate(mine):
            assert (ids == plan.batch(Cursor(0, 16), 3 * turn + worker, seat, 16)).all()


def test_replicated_ranks_share_their_samples() -> None:
    plan = plan_mix()
    shared = [replicate(seat, 2) for seat in seats(WORLD)]
    assert {seat.world.num_ranks for seat in shared} == {4}
    batches = [plan.batch(Cursor(), 0, seat, 16).tolist() for seat in shared]
    assert batches[0::2] == batches[1::2]
    assert len({tuple(batch) for batch in batches}) == 4
    assert replicate(Seat(world=World(num_nodes=3, ranks_per_node=2)), 3).world == World(ranks_per_node=2)
    with pytest.raises(ConfigError, match="does not divide"):
        replicate(Seat(world=WORLD), 3)


def test_a_node_that_divides_the_lanes_keeps_to_its_own_shards() -> None:
    plan = StreamPlan.make([StreamShards(name="one", lengths=np.full(320, 50))], OrderOptions(num_canonical_nodes=8))
    world = World(num_nodes=4, ranks_per_node=2)
    steps = plan.num_batches(Cursor(), Seat(world=world), 64)
    touched = [
        plan.upcoming_shards(Cursor(), 0, steps, Seat(world=world, node=node), 64, of="node") for node in range(4)
    ]
    assert sum(map(len, touched)) == 320


@pytest.mark.parametrize("method", ["random", "stratified"])
def test_nodes_keep_to_their_own_shards_in_a_mix_too(method: str) -> None:
    streams = [
        StreamShards(name="a", lengths=np.full(400, 50)),
        StreamShards(name="b", lengths=np.full(320, 25)),
        StreamShards(name="c", lengths=np.full(320, 20), weight=StreamWeight(repeat=0.5)),
    ]
    options = OrderOptions(num_canonical_nodes=8, batching_method=method, global_batch_size=128)  # type: ignore[arg-type]
    plan = StreamPlan.make(streams, options)
    ids = read_epoch(plan)
    needed = len(np.unique(plan.spans.locate(ids)[0]))
    touched = [len(np.unique(plan.spans.locate(ids[node::8])[0])) for node in range(8)]
    assert sum(touched) <= 1.05 * needed


def test_a_plan_goes_to_workers_without_what_it_remembers() -> None:
    plan = plan_mix(num_canonical_nodes=4)
    small = len(pickle.dumps(plan))
    ids = read_epoch(plan)
    assert len(pickle.dumps(plan)) == small
    assert (read_epoch(pickle.loads(pickle.dumps(plan))) == ids).all()


@pytest.mark.parametrize(
    "options",
    [
        {"num_canonical_nodes": 0},
        {"shuffle_block_size": -1},
        {"epoch_end": "never"},
        {"batching_method": "sorted"},
        {"batching_method": "device_per_stream", "global_batch_size": 10},
        {"batching_method": "device_per_stream", "global_batch_size": 10, "device_batch_size": 3},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        OrderOptions(**options)  # type: ignore[arg-type]


def test_worlds_and_seats_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 or more"):
        World(num_nodes=0)
    with pytest.raises(ConfigError, match="does not exist"):
        Seat(world=World(), node=1)
    with pytest.raises(ConfigError, match="same name"):
        StreamPlan.make([*make_streams(), *make_streams()], OrderOptions())
    with pytest.raises(ConfigError, match="global batch size is 0"):
        plan_mix().batch(Cursor(), 0, Seat(world=WORLD), 0)
