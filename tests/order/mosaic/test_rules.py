"""Weights, options and states: what they mean, what is refused, and what is said about it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, ResumeError
from penstock.order.cursor import Cursor, read_state
from penstock.order.mosaic.plan import MosaicPlan
from penstock.order.mosaic.rules import MosaicOptions, MosaicState, resume_at
from penstock.order.mosaic.sampling import share_out
from penstock.order.weights import StreamWeight
from penstock.order.world import Seat, World

STATE = {
    "epoch": 2,
    "sample_in_epoch": 24,
    "num_canonical_nodes": 4,
    "shuffle_seed": 7,
    "initial_physical_nodes": 2,
}


@given(
    sizes=st.lists(st.integers(1, 10**9), min_size=1, max_size=20),
    epoch_size=st.integers(1, 10**12),
    seed=st.integers(0, 2**40),
    data=st.data(),
)
def test_shares_by_proportion_are_exact(sizes: list[int], epoch_size: int, seed: int, data: st.DataObject) -> None:
    proportions = [data.draw(st.floats(1e-9, 1e9)) for _ in sizes]
    weights = [StreamWeight(proportion=proportion) for proportion in proportions]
    shares = share_out(sizes, weights, epoch_size=epoch_size, seed=seed)
    assert sum(share.choose for share in shares) == epoch_size
    for share, proportion, size in zip(shares, proportions, sizes, strict=True):
        assert abs(share.choose - epoch_size * proportion / sum(proportions)) <= 1 + 1e-3
        assert share.repeat == share.choose / size


def test_absolute_weights_mix() -> None:
    weights = [StreamWeight(repeat=1.7), StreamWeight(choose=50), StreamWeight()]
    shares = share_out([100, 200, 300], weights, epoch_size=None, seed=0)
    assert [share.choose for share in shares] == [170, 50, 300]
    assert [share.repeat for share in shares] == [1.7, 0.25, 1.0]
    assert [share.proportion for share in shares] == [170 / 520, 50 / 520, 300 / 520]


@pytest.mark.parametrize(
    "fields",
    [{"proportion": 1.0, "repeat": 1.0}, {"repeat": 1.0, "choose": 1}, {"choose": 1, "proportion": 0.1}],
)
def test_one_weight_per_stream(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="only one weight"):
        StreamWeight(**fields)


@pytest.mark.parametrize("fields", [{"proportion": -0.1}, {"repeat": -1.0}, {"choose": -1}, {"repeat": float("nan")}])
def test_weights_are_not_negative(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not a weight"):
        StreamWeight(**fields)


@pytest.mark.parametrize(
    ("weights", "epoch_size", "message"),
    [
        (
            [StreamWeight(proportion=1), StreamWeight()],
            None,
            "stream 1 has no proportion, but stream 0 has one",
        ),
        (
            [StreamWeight(repeat=2), StreamWeight()],
            100,
            "epoch_size=100 needs streams weighted by proportion",
        ),
        ([StreamWeight(proportion=0), StreamWeight(proportion=0)], None, "give no samples"),
        ([StreamWeight(choose=0), StreamWeight(choose=0)], None, "give no samples"),
    ],
)
def test_weights_that_make_no_epoch(weights: list[StreamWeight], epoch_size: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        share_out([10, 20], weights, epoch_size=epoch_size, seed=0)


def test_an_empty_stream_cannot_give_samples() -> None:
    with pytest.raises(ConfigError, match="stream 1 should give 5 samples, but it is empty"):
        share_out([10, 0], [StreamWeight(), StreamWeight(choose=5)], epoch_size=None, seed=0)


def test_no_data_at_all() -> None:
    with pytest.raises(ConfigError, match="no samples to plan for"):
        MosaicPlan.make([[], [0]], MosaicOptions(), num_nodes=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mosaic_version": "0.6"}, "unknown mosaic_version"),
        ({"sampling_method": "odd"}, "unknown sampling_method"),
        ({"batching_method": "odd"}, "unknown batching_method"),
        ({"partition_algo": "odd"}, "unknown partition_algo"),
        ({"shuffle_algo": "py9"}, "unknown shuffle_algo"),
        ({"sampling_granularity": 0}, "use 1 or more"),
        ({"num_canonical_nodes": 0}, "use 1 or more"),
        ({"batch_size": 0}, "use 1 or more"),
        ({"shuffle_seed": -1}, "use 0 or more"),
        ({"mosaic_version": "0.5", "shuffle_algo": "py1e"}, "shuffle_algo of release 0.5"),
        ({"mosaic_version": "0.5", "batching_method": "stratified"}, "use 'random'"),
        ({"mosaic_version": "0.5", "partition_algo": "relaxed"}, "use 'orig'"),
        ({"mosaic_version": "0.5", "sampling_method": "fixed"}, "neither sampling_method"),
    ],
)
def test_options_that_make_no_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MosaicOptions(**fields)


def test_defaults_of_the_releases() -> None:
    new, old = (
        MosaicOptions(shuffle=True).resolve(3),
        MosaicOptions(shuffle=True, mosaic_version="0.5").resolve(3),
    )
    assert (new.shuffle_algo, new.partition_algo, new.num_canonical_nodes) == ("py1e", "relaxed", 3)
    assert (old.shuffle_algo, old.partition_algo, old.num_canonical_nodes) == ("py1s", "orig", 192)
    assert new.block_size == 4_000_000 // 3
    assert old.block_size == 1 << 18
    assert MosaicOptions(shuffle_algo="py2s").resolve(3).num_canonical_nodes == 192
    assert MosaicOptions(num_canonical_nodes=100).resolve(1).block_size == 1 << 18


def test_a_state_is_adopted() -> None:
    state = MosaicState.from_dict(STATE)
    plan = MosaicPlan.make([[100]], MosaicOptions(shuffle=True), num_nodes=8, state=state)
    assert plan.rules.num_canonical_nodes == 4
    assert plan.rules.shuffle_seed == 7
    assert plan.rules.initial_nodes == 2
    assert plan.rules.block_size == 1_000_000
    assert plan.mosaic_state(Cursor(2, 24)).to_dict() == STATE


def test_own_states_carry_mosaicml_fields() -> None:
    plan = MosaicPlan.make([[100]], MosaicOptions(shuffle=True), num_nodes=2)
    state = plan.state_dict(Cursor(1, 40))
    assert read_state(state, order="mosaic") == Cursor(1, 40)
    assert MosaicState.from_dict(state) == plan.mosaic_state(Cursor(1, 40))
    assert state["fingerprint"] == plan.fingerprint


def test_a_state_of_release_0_5_has_no_initial_nodes() -> None:
    plan = MosaicPlan.make([[1000]], MosaicOptions(mosaic_version="0.5"), num_nodes=1)
    fields = plan.mosaic_state(Cursor(0, 8)).to_dict()
    assert "initial_physical_nodes" not in fields
    assert MosaicState.from_dict(fields).initial_physical_nodes is None


def test_older_states_have_no_effect() -> None:
    state = MosaicState.from_dict(STATE)
    assert resume_at(state, 2) == resume_at(state, 0) == Cursor(2, 24)
    assert resume_at(state, 3) == Cursor(3, 0)
    assert resume_at(None, 5) == Cursor(5, 0)
    unused = MosaicState.from_dict({**STATE, "epoch": -1, "sample_in_epoch": 0})
    assert resume_at(unused, 0) == Cursor(0, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": None},
        {"epoch": -2},
        {"sample_in_epoch": "12"},
        {"sample_in_epoch": -1},
        {"num_canonical_nodes": 0},
        {"shuffle_seed": 1.5},
        {"initial_physical_nodes": "2"},
        {"initial_physical_nodes": 0},
    ],
)
def test_broken_states(change: dict[str, Any]) -> None:
    with pytest.raises(ResumeError, match=f"the state has {next(iter(change))}="):
        MosaicState.from_dict({**STATE, **change})


def test_a_state_beyond_the_epoch() -> None:
    plan = MosaicPlan.make([[100]], MosaicOptions(), num_nodes=1)
    seat = Seat(world=World(ranks_per_node=4))
    assert plan.num_batches(Cursor(0, 100), seat, 8) == 0
    assert plan.batch(Cursor(0, 104), 0, seat, 8).tolist() == []
    with pytest.raises(ResumeError, match="Resuming further into the dataset .105 samples. than an epoch has .100."):
        plan.batch(Cursor(0, 105), 0, seat, 8)


def test_global_batch_must_fit_the_ranks() -> None:
    plan = MosaicPlan.make([[100]], MosaicOptions(), num_nodes=1)
    with pytest.raises(ConfigError, match="a global batch of 10 cannot be divided evenly among 4 ranks"):
        plan.batch(Cursor(0, 0), 0, Seat(world=World(ranks_per_node=4)), 10)


def test_nodes_must_fit_canonical_nodes_in_a_new_run() -> None:
    plan = MosaicPlan.make([[100]], MosaicOptions(num_canonical_nodes=4), num_nodes=3)
    with pytest.raises(ConfigError, match="num_canonical_nodes=4 is neither a multiple nor a divisor of the 3 nodes"):
        plan.batch(Cursor(0, 0), 0, Seat(world=World(num_nodes=3)), 9)


def test_a_resumed_run_needs_a_batch_that_its_first_cluster_could_cut() -> None:
    state = MosaicState.from_dict({**STATE, "num_canonical_nodes": 4, "initial_physical_nodes": 4})
    plan = MosaicPlan.make([[100]], MosaicOptions(), num_nodes=3, state=state)
    assert len(plan.batch(Cursor(2, 24), 0, Seat(world=World(num_nodes=3)), 12)) == 4
    with pytest.raises(ResumeError, match="global batch of 9 cannot be divided among the 4 ranks"):
        plan.batch(Cursor(2, 24), 0, Seat(world=World(num_nodes=3)), 9)


@pytest.mark.parametrize(
    ("fields", "shards", "message"),
    [
        ({"batching_method": "stratified"}, [[1000], [1]], "less than one sample in a global batch of 8"),
        ({"batching_method": "per_stream"}, [[1000], [5]], "stream 1 cannot fill a single global batch of 8"),
        (
            {"batching_method": "device_per_stream"},
            [[1000], [1]],
            "stream 1 cannot fill a single device batch of 4",
        ),
        (
            {"batching_method": "device_per_stream", "num_canonical_nodes": 1},
            [[1000]],
            "num_canonical_nodes=1 to be a multiple of the 2 nodes",
        ),
        (
            {"batching_method": "device_per_stream", "shuffle": True, "shuffle_block_size": 10},
            [[1000], [30]],
            "stream 1 has a proportion of 0.0291, too small for a share of shuffle_block_size=10",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:(Trying|Attempting) to partition", "ignore:.*longer than a shuffle block")
def test_streams_too_small_for_their_batches(fields: dict[str, Any], shards: list[list[int]], message: str) -> None:
    plan = MosaicPlan.make(shards, MosaicOptions(**fields), num_nodes=2)
    with pytest.raises(ConfigError, match=message):
        plan.batch(Cursor(0, 0), 0, Seat(world=World(num_nodes=2)), 8)


def test_batches_by_stream_resume_at_whole_batches_only() -> None:
    plan = MosaicPlan.make([[100], [100]], MosaicOptions(batching_method="stratified"), num_nodes=1)
    seat = Seat(world=World())
    with pytest.warns(UserWarning, match="resuming after 20 samples.*: 4 samples will be seen again"):
        resumed = plan.batch(Cursor(0, 20), 0, seat, 8)
    assert resumed.tolist() == plan.batch(Cursor(0, 0), 2, seat, 8).tolist()


def test_fewer_samples_than_canonical_nodes() -> None:
    plan = MosaicPlan.make([[3]], MosaicOptions(num_canonical_nodes=4), num_nodes=1)
    with pytest.warns(UserWarning, match="Trying to partition 3 samples over 4 canonical nodes"):
        assert plan.batch(Cursor(0, 0), 0, Seat(world=World()), 4).tolist() == [0, 1, 2, 0]


def test_release_0_5_is_strict_about_small_worlds() -> None:
    options = MosaicOptions(mosaic_version="0.5", num_canonical_nodes=2)
    plan = MosaicPlan.make([[100]], options, num_nodes=2)
    with pytest.raises(ResumeError, match="cannot resume after 3 samples on 2 nodes"):
        plan.batch(Cursor(0, 3), 0, Seat(world=World(num_nodes=2)), 4)
    # Beyond the epoch, though, it sees an empty rest.
    assert plan.num_batches(Cursor(0, 1001), Seat(world=World(num_nodes=2)), 4) == 0
    few = MosaicPlan.make([[6]], options, num_nodes=2)
    with pytest.raises(ConfigError, match="3 samples per node are too few for 4 ranks"):
        few.batch(Cursor(0, 0), 0, Seat(world=World(num_nodes=2, ranks_per_node=4)), 8)
