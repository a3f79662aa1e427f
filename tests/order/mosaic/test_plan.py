"""What holds for every MosaicML-compatible plan, whatever the data, the settings and the world."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.order.cursor import Cursor
from penstock.order.mosaic.plan import MosaicPlan
from penstock.order.mosaic.rules import MosaicOptions, MosaicState
from penstock.order.weights import StreamWeight
from penstock.order.world import Seat, World, seats

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.order.mosaic.ids import IdArray
    from penstock.order.plan import Plan

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*longer than a shuffle block"),
    pytest.mark.filterwarnings("ignore:(Trying|Attempting) to partition"),
]

ALGORITHMS = ("py1e", "py1br", "py1b", "py1s", "py2s", "naive")
shard_lists = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(lambda sizes: sum(sizes) >= 16)
# Divisors of twelve canonical nodes, so that every world is dealt the same list.
worlds = st.builds(World, num_nodes=st.sampled_from([1, 2, 3, 4, 6]), ranks_per_node=st.integers(1, 4))


@st.composite
def plans(draw: st.DrawFn) -> MosaicPlan:
    options = MosaicOptions(
        num_canonical_nodes=12,
        shuffle=draw(st.booleans()),
        shuffle_algo=draw(st.sampled_from(ALGORITHMS)),
        shuffle_seed=draw(st.integers(0, 2**40)),
        shuffle_block_size=draw(st.integers(2, 60)),
    )
    shards = draw(st.lists(shard_lists, min_size=1, max_size=3))
    weights = [StreamWeight(repeat=draw(st.sampled_from([None, 1, 1.5, 2]))) for _ in shards]
    return MosaicPlan.make(shards, options, num_nodes=1, weights=weights)


def read_pass(plan: MosaicPlan, at: Cursor, world: World, batch_size: int) -> list[int]:
    """The global sequence that a world reads from a cursor to the end of the epoch."""
    size = batch_size * world.num_ranks
    num_steps = max(plan.num_batches(at, seat, size) for seat in seats(world))
    return [int(x) for step in range(num_steps) for x in plan.global_batch(at, step, world, size)]


@given(plan=plans(), world=worlds, batch_size=st.integers(1, 5), epoch=st.integers(0, 5))
@settings(max_examples=60)
def test_an_epoch_is_its_samples_and_few_repeats(plan: MosaicPlan, world: World, batch_size: int, epoch: int) -> None:
    sequence = read_pass(plan, Cursor(epoch, 0), world, batch_size)
    # One for each canonical node at most, and then less than one for each rank.
    assert 0 <= len(sequence) - plan.epoch_size(epoch) < 12 + world.num_ranks
    assert len(sequence) % world.num_ranks == 0
    whole_passes = [(stream.shards, int(stream.share.repeat)) for stream in plan.streams]
    seen = Counter(sequence)
    for shards, num_passes in whole_passes:
        ids = range(shards.end_id - shards.num_samples, shards.end_id)
        assert all(seen[x] >= num_passes for x in ids)
        assert sum(seen[x] for x in ids) >= num_passes * len(ids)


@given(plan=plans(), world=worlds, batch_size=st.integers(1, 5))
@settings(max_examples=60)
def test_ranks_together_read_the_global_batch(plan: MosaicPlan, world: World, batch_size: int) -> None:
    at, size = Cursor(1, 0), batch_size * world.num_ranks
    step = 0
    while len(whole := plan.global_batch(at, step, world, size)):
        shares = [plan.batch(at, step, seat, size) for seat in seats(world)]
        assert len({len(share) for share in shares}) == 1
        # Entries are dealt to nodes in turn, then to their ranks.
        dealt = np.stack(shares, axis=1).reshape(len(shares[0]), world.num_nodes, world.ranks_per_node)
        assert dealt.transpose(0, 2, 1).reshape(-1).tolist() == whole.tolist()
        step += 1
    assert all(plan.num_batches(at, seat, size) == step for seat in seats(world))


@given(
    plan=plans(),
    first=worlds,
    second=worlds,
    batch_sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    num_steps=st.integers(0, 8),
)
@settings(max_examples=80)
def test_cut_anywhere_and_resumed_on_any_world_is_uncut(
    plan: MosaicPlan, first: World, second: World, batch_sizes: tuple[int, int], num_steps: int
) -> None:
    size = batch_sizes[0] * first.num_ranks
    begun = [x for step in range(num_steps) for x in plan.global_batch(Cursor(2, 0), step, first, size).tolist()]
    # Worlds differ by the repeats at the end of the list: stop before, on a round of both worlds' nodes.
    num_listed = -(-plan.epoch_size(2) // 12) * 12
    cut = min(len(begun), plan.epoch_size(2)) // 12 * 12
    resumed = read_pass(plan, Cursor(2, cut), second, batch_sizes[1])
    uncut = read_pass(plan, Cursor(2, 0), second, batch_sizes[1])
    assert [*begun[:cut], *resumed][:num_listed] == uncut[:num_listed]


@given(shards=st.lists(shard_lists, min_size=2, max_size=3), num_batches=st.integers(0, 4), world=worlds)
@settings(max_examples=40)
@pytest.mark.parametrize("method", ["stratified", "per_stream", "device_per_stream"])
def test_batches_by_stream_resume_at_the_next_batch(
    method: Any, shards: list[list[int]], num_batches: int, world: World
) -> None:
    shards = [[*sizes, 400] for sizes in shards]
    options = MosaicOptions(shuffle=True, batching_method=method, num_canonical_nodes=12)
    plan = MosaicPlan.make(shards, options, num_nodes=world.num_nodes)
    size = 4 * world.num_ranks
    whole = plan.epoch_batches(Cursor(0, 0), world, size).stack()
    rest = plan.epoch_batches(Cursor(0, num_batches * size), world, size).stack()
    assert rest.tolist() == whole[num_batches:].tolist()
    ids = whole[whole >= 0].tolist()
    assert set(ids) <= set(range(sum(map(sum, shards))))
    # Samples are used once, but for the repeats that make canonical nodes and ranks equal.
    assert len(ids) - len(set(ids)) <= len(shards) * (12 + 12 * world.num_ranks)


@given(plan=plans().filter(lambda plan: plan.rules.shuffle_algo is not None))
@settings(max_examples=25)
def test_epochs_and_seeds_differ(plan: MosaicPlan) -> None:
    world = World()
    state = MosaicState(epoch=0, sample_in_epoch=0, num_canonical_nodes=12, shuffle_seed=plan.rules.shuffle_seed + 100)
    other = MosaicPlan(streams=plan.streams, rules=state.adopt(plan.rules), num_nodes=1)
    epochs = [read_pass(plan, Cursor(epoch, 0), world, 4) for epoch in range(4)]
    assert any(epoch != epochs[0] for epoch in epochs)
    assert any(read_pass(other, Cursor(epoch, 0), world, 4) != epochs[epoch] for epoch in range(4))
    assert other.fingerprint != plan.fingerprint


@given(plan=plans(), world=worlds)
@settings(max_examples=30)
def test_upcoming_shards_are_those_of_the_ids(plan: MosaicPlan, world: World) -> None:
    at, size = Cursor(0, 0), 3 * world.num_ranks
    sizes = np.concatenate([stream.shards.sizes for stream in plan.streams])
    shard_of = np.repeat(np.arange(len(sizes)), sizes)
    seat = seats(world)[-1]
    own = [x for step in (1, 2) for x in plan.batch(at, step, seat, size).tolist()]
    listed = plan.upcoming_shards(at, 1, 2, seat, size, of="rank")
    assert listed.tolist() == list(dict.fromkeys(shard_of[x] for x in own))
    mates = [mate for mate in seats(world) if mate.node == seat.node]
    of_node = plan.upcoming_shards(at, 1, 2, seat, size, of="node")
    ids = [x for mate in mates for step in (1, 2) for x in plan.batch(at, step, mate, size).tolist()]
    assert set(of_node.tolist()) == {shard_of[x] for x in ids}
    assert len(set(of_node.tolist())) == len(of_node)
    assert plan.upcoming_shards(at, 10**6, 5, seat, size, of="node").tolist() == []


@dataclass
class Counting:
    """A store of arrays that remembers what it was asked to compute."""

    arrays: dict[str, IdArray] = field(default_factory=dict)

    def __call__(self, name: str, compute: Callable[[], IdArray], /) -> IdArray:
        assert re.fullmatch(r"[a-z0-9-]{1,100}", name)
        if name not in self.arrays:
            self.arrays[name] = compute()
            self.arrays[name].flags.writeable = False
        return self.arrays[name]


def test_an_epoch_is_computed_once_for_all_worlds_and_places() -> None:
    kept = Counting()
    options = MosaicOptions(shuffle=True, num_canonical_nodes=4)
    plan = MosaicPlan.make([[100, 50]], options, num_nodes=2, compute_once=kept)
    # Another process of the node, or another run with the same data and seed, finds the array by its name.
    twin = MosaicPlan.make([[100, 50]], options, num_nodes=2, compute_once=kept)
    for world in (World(), World(num_nodes=2, ranks_per_node=3), World(num_nodes=4)):
        for position in (0, 48):
            plan.batch(Cursor(0, position), 1, Seat(world=world), 12)
            twin.batch(Cursor(0, position), 1, Seat(world=world), 24)
    assert len(kept.arrays) == 1
    assert next(iter(kept.arrays.values())).dtype == np.int32
    plan.batch(Cursor(1, 0), 1, Seat(world=World()), 12)
    assert len(kept.arrays) == 2


def test_batches_by_stream_are_computed_once_for_a_world() -> None:
    kept = Counting()
    options = MosaicOptions(shuffle=True, batching_method="per_stream", num_canonical_nodes=4)
    plan = MosaicPlan.make([[100], [50]], options, num_nodes=2, compute_once=kept)
    for position in (0, 24, 48):
        for seat in seats(World(num_nodes=2, ranks_per_node=2)):
            plan.batch(Cursor(0, position), 1, seat, 12)
    assert len(kept.arrays) == 1
    plan.batch(Cursor(0, 0), 1, Seat(world=World(num_nodes=4)), 12)
    assert len(kept.arrays) == 2


def test_a_plan_goes_to_workers_without_its_arrays() -> None:
    plan: Plan = MosaicPlan.make([[10**5]], MosaicOptions(shuffle=True), num_nodes=1)
    at, seat = Cursor(3, 0), Seat(world=World())
    before = plan.batch(at, 7, seat, 16)
    sent = pickle.dumps(plan)
    assert len(sent) < 10_000
    received: Plan = pickle.loads(sent)
    assert received == plan
    assert received.fingerprint == plan.fingerprint
    assert received.batch(at, 7, seat, 16).tolist() == before.tolist()


def test_orders_do_not_depend_on_the_process() -> None:
    program = (
        "from penstock.order.mosaic.plan import *\n"
        "from penstock.order.mosaic.rules import MosaicOptions\n"
        "from penstock.order.cursor import Cursor\n"
        "from penstock.order.world import World\n"
        "plan = MosaicPlan.make([[40, 50], [60]], MosaicOptions(shuffle=True), num_nodes=1)\n"
        "print(plan.fingerprint, plan.global_batch(Cursor(1, 0), 3, World(), 32).tolist())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_large_ids_make_wide_arrays() -> None:
    options = MosaicOptions(sampling_granularity=2**30, shuffle=True)
    weights = [StreamWeight(choose=50), StreamWeight()]
    plan = MosaicPlan.make([[2**31], [100]], options, num_nodes=1, weights=weights)
    sequence = read_pass(plan, Cursor(0, 0), World(), 10)
    assert sorted(x for x in sequence if x >= 2**31) == list(range(2**31, 2**31 + 100))
    assert len({x for x in sequence if 0 <= x < 2**31}) == 50
