"""Which order a run gets, by name, by algorithm or by state, and where it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.errors import ConfigError, ResumeError
from penstock.order.cursor import Cursor
from penstock.order.make_plan import RunSettings, choose_order, make_plan
from penstock.order.mosaic.plan import MosaicPlan
from penstock.order.mosaic.rules import MosaicOptions
from penstock.order.native import StreamPlan
from penstock.order.options import StreamShards
from penstock.order.schedule import MixSchedule
from penstock.order.weights import StreamWeight
from penstock.order.world import World

if TYPE_CHECKING:
    from penstock.order.plan import Plan

WORLD = World(num_nodes=2, ranks_per_node=2)
BATCH = 16
MOSAIC_STATE = {
    "epoch": 1,
    "sample_in_epoch": 3 * BATCH,
    "num_canonical_nodes": 4,
    "shuffle_seed": 17,
    "initial_physical_nodes": 2,
}


def streams(*weights: float) -> list[StreamShards]:
    return [
        StreamShards(name=f"s{number}", lengths=np.array([50, 70, 30]), weight=StreamWeight(proportion=weight))
        for number, weight in enumerate(weights or (1.0,))
    ]


def plan_of(settings: RunSettings, state: Any = None, **more: Any) -> tuple[Plan, Cursor]:
    given = more.pop("streams", streams())
    return make_plan(given, settings, world=WORLD, global_batch_size=BATCH, state=state, **more)


def batches(plan: Plan, at: Cursor, world: World = WORLD) -> list[list[int]]:
    found: list[list[int]] = []
    for step in range(1000):
        ids = plan.global_batch(at, step, world, BATCH)
        if not len(ids):
            return found
        found.append(ids.tolist())
    raise AssertionError("the epoch does not end")


@pytest.mark.parametrize(
    ("settings", "state", "order"),
    [
        ({}, None, "native"),
        ({"order": "native"}, None, "native"),
        ({"order": "mosaic"}, None, "mosaic"),
        ({"shuffle_algo": "py1s"}, None, "mosaic"),
        ({"order": "mosaic", "shuffle_algo": "py1e"}, None, "mosaic"),
        ({"partition_algo": "relaxed"}, None, "mosaic"),
        ({"sampling_method": "fixed"}, None, "mosaic"),
        ({"sampling_method": "balanced", "sampling_granularity": 1}, None, "native"),
        ({"sampling_granularity": 2}, None, "mosaic"),
        ({"mosaic_version": "0.5"}, None, "mosaic"),
        ({}, MOSAIC_STATE, "mosaic"),
        ({}, {"order": "mosaic"}, "mosaic"),
        ({}, {"order": "native"}, "native"),
        ({"shuffle_algo": "naive"}, MOSAIC_STATE, "mosaic"),
    ],
)
def test_which_order_is_meant(settings: dict[str, Any], state: Any, order: str) -> None:
    assert choose_order(RunSettings(**settings), state) == order


@pytest.mark.parametrize(
    ("settings", "state", "kind", "message"),
    [
        (
            {"order": "native", "shuffle_algo": "py1e"},
            None,
            ConfigError,
            "shuffle_algo='py1e' works only with order='mosaic'",
        ),
        ({"order": "native", "sampling_granularity": 2}, None, ConfigError, "sampling_granularity=2 works only with"),
        ({"order": "native"}, MOSAIC_STATE, ResumeError, "set order='mosaic'"),
        ({"shuffle_algo": "py1e"}, {"order": "native"}, ResumeError, "set order='native'"),
        ({}, {"step": 3}, ResumeError, "fields 'step', which is neither"),
        ({}, {}, ResumeError, "fields none"),
    ],
)
def test_contradictions(settings: dict[str, Any], state: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        choose_order(RunSettings(**settings), state)


@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
@pytest.mark.parametrize("order", ["native", "mosaic"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_setting_reaches_the_plan_and_its_state_leads_back(method: Any, order: str, shuffle: bool) -> None:
    settings = RunSettings(
        order=order,
        shuffle=shuffle,
        shuffle_seed=3,
        num_canonical_nodes=2,
        shuffle_block_size=1000,
        epoch_size="0.4k",
        batching_method=method,
    )
    data = streams(2.0, 1.0)
    plan, start = plan_of(settings, streams=data)
    assert isinstance(plan, MosaicPlan if order == "mosaic" else StreamPlan)
    assert start == Cursor(0, 0)
    assert plan.epoch_size(0) == 400 or method.endswith("per_stream")
    whole = batches(plan, Cursor(1, 0))
    for step in (1, len(whole) - 1):
        state = plan.state_dict(Cursor(1, step * BATCH))
        resumed, at = plan_of(settings, state, streams=data)
        assert at == Cursor(1, step * BATCH)
        assert batches(resumed, at) == whole[step:]


def test_a_state_of_mosaicml_goes_on_with_the_very_next_sample() -> None:
    settings = RunSettings(shuffle=True, shuffle_seed=17, num_canonical_nodes=4)
    begun = MosaicPlan.make(
        [[50, 70, 30]],
        mosaic_options(shuffle=True, shuffle_seed=17, num_canonical_nodes=4),
        num_nodes=2,
    )
    data = [StreamShards(name="s", lengths=np.array([50, 70, 30]))]
    resumed, at = plan_of(settings, MOSAIC_STATE, streams=data)
    assert at == Cursor(1, 3 * BATCH)
    assert batches(resumed, at) == batches(begun, Cursor(1, 0))[3:]
    # Seed and canonical nodes are the state's, whatever the settings say.
    other, _ = plan_of(
        RunSettings(shuffle=True), MOSAIC_STATE, streams=[StreamShards(name="s", lengths=np.array([50, 70, 30]))]
    )
    assert batches(other, at) == batches(resumed, at)


def mosaic_options(**given: Any) -> MosaicOptions:
    return MosaicOptions(batch_size=BATCH // WORLD.num_ranks, **given)


def test_release_0_5_is_a_setting() -> None:
    plan, _ = plan_of(RunSettings(order="mosaic", mosaic_version="0.5", shuffle=True))
    assert isinstance(plan, MosaicPlan)
    assert plan.rules.shuffle_algo == "py1s"
    assert plan.rules.num_canonical_nodes == 128


def test_a_state_of_other_data_is_refused() -> None:
    for order in ("native", "mosaic"):
        settings = RunSettings(order=order, shuffle=True)
        plan, _ = plan_of(settings)
        other = [StreamShards(name="s0", lengths=np.array([50, 70, 31]), weight=StreamWeight(proportion=1.0))]
        with pytest.raises(ResumeError):
            plan_of(settings, plan.state_dict(Cursor(0, 16)), streams=other)


def test_a_change_of_mix_must_be_allowed() -> None:
    settings = RunSettings(shuffle=True, epoch_size=320)
    plan, _ = plan_of(settings, streams=streams(1.0, 1.0))
    state = plan.state_dict(Cursor(0, 160))
    with pytest.raises(ResumeError, match="allow_mix_change=True"):
        plan_of(settings, state, streams=streams(3.0, 1.0))
    with pytest.warns(UserWarning, match="the mix changes at epoch 0, position 160"):
        changed, at = plan_of(settings, state, streams=streams(3.0, 1.0), allow_mix_change=True)
    rest = np.concatenate(batches(changed, at))
    assert (rest < 150).sum() == 120


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampling_method": "fixed", "epoch_end": "drop"}, "epoch_end and schedule do not work"),
        ({"order": "mosaic", "epoch_end": "drop"}, "epoch_end and schedule do not work"),
        ({"order": "mosaic", "shuffle_algo": "py9"}, "py9"),
        ({"order": "nowhere"}, "unknown order 'nowhere'"),
    ],
)
def test_settings_of_another_order(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(RunSettings(**settings))


def test_a_schedule_reaches_the_plan() -> None:
    schedule = MixSchedule(positions=(0, 160), proportions=((1.0, 0.0), (0.0, 1.0)), shape="step")
    given = [StreamShards(name=f"s{number}", lengths=np.array([100, 100])) for number in range(2)]
    plan, _ = plan_of(RunSettings(shuffle=True, schedule=schedule, epoch_size=320), streams=given)
    order = np.concatenate(batches(plan, Cursor(0, 0)))
    assert (order[:160] < 200).all()
    assert (order[160:] >= 200).all()
