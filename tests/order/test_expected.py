"""Looking far ahead: the shards that a rank is told to expect are those that it comes to need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.order.cursor import Cursor
from penstock.order.make_plan import RunSettings, make_plan
from penstock.order.options import StreamShards
from penstock.order.weights import StreamWeight
from penstock.order.world import World, seats


@st.composite
def streams(draw: st.DrawFn) -> list[StreamShards]:
    found = []
    for number in range(draw(st.integers(1, 3))):
        lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=40))
        repeat = draw(st.sampled_from([None, 0.5, 1.7, 3.0]))
        found.append(StreamShards(name=f"s{number}", lengths=np.array(lengths), weight=StreamWeight(repeat=repeat)))
    return found


@settings(max_examples=150, deadline=None)
@given(
    mixed=streams(),
    shuffle=st.booleans(),
    num_nodes=st.integers(1, 2),
    ranks_per_node=st.integers(1, 3),
    lanes=st.sampled_from([None, 1, 2, 5]),
    batch_size=st.integers(1, 9),
    step=st.integers(0, 12),
    num_steps=st.integers(1, 20),
)
def test_nothing_that_is_needed_is_left_out(
    mixed: list[StreamShards],
    shuffle: bool,
    num_nodes: int,
    ranks_per_node: int,
    lanes: int | None,
    batch_size: int,
    step: int,
    num_steps: int,
) -> None:
    world = World(num_nodes=num_nodes, ranks_per_node=ranks_per_node)
    size = batch_size * world.num_ranks
    chosen = RunSettings(shuffle=shuffle, num_canonical_nodes=lanes)
    plan, at = make_plan(mixed, chosen, world=world, global_batch_size=size)
    for seat in seats(world):
        shards, first_steps = plan.expected_shards(at, step, num_steps, seat, size)
        needed = plan.upcoming_shards(at, step, num_steps, seat, size, of="rank")
        # Repeats that make ranks equal at the end of an epoch come from shards that were just used.
        if step * size < plan.epoch_size(0) - size * num_steps:
            assert set(needed.tolist()) <= set(shards.tolist())
        assert len(set(shards.tolist())) == len(shards)
        assert (np.diff(first_steps) >= 0).all()
        assert ((first_steps >= 0) & (first_steps < num_steps)).all()


def test_a_long_look_names_few_shards_too_many_and_says_when() -> None:
    """With 300 shards, 400 steps ahead: what is expected is what is needed, and about when."""
    lengths = np.random.default_rng(0).integers(500, 1500, 300)
    world = World()
    plan, at = make_plan(
        [StreamShards(name="a", lengths=lengths)], RunSettings(shuffle=True), world=world, global_batch_size=64
    )
    [seat] = seats(world)
    shards, first_steps = plan.expected_shards(at, 1000, 400, seat, 64)
    needed = plan.upcoming_shards(at, 1000, 400, seat, 64, of="rank")
    assert set(shards.tolist()) == set(needed.tolist())
    for shard, expected in zip(shards.tolist(), first_steps.tolist(), strict=True):
        uses = (step for step in range(1000, 1400) if shard in plan.upcoming_shards(at, step, 1, seat, 64, of="rank"))
        first = next(uses) - 1000
        assert expected <= first + 20  # announced in time


@pytest.mark.parametrize("algorithm", ["py1e", "naive"])
def test_recorded_orders_know_exactly(algorithm: str) -> None:
    world = World(ranks_per_node=2)
    plan, _ = make_plan(
        [StreamShards(name="a", lengths=np.full(20, 50))],
        RunSettings(shuffle=True, shuffle_algo=algorithm),
        world=world,
        global_batch_size=8,
    )
    for seat in seats(world):
        shards, first_steps = plan.expected_shards(Cursor(), 5, 30, seat, 8)
        needed = plan.upcoming_shards(Cursor(), 5, 30, seat, 8, of="rank")
        assert shards.tolist() == needed.tolist()
        assert (np.diff(first_steps) >= 0).all()
