"""Every order recorded from mosaicml-streaming, made again bit for bit."""

from __future__ import annotations

import builtins
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.order.cursor import Cursor
from penstock.order.mosaic.plan import MosaicPlan
from penstock.order.mosaic.rules import MosaicOptions, MosaicState, resume_at
from penstock.order.mosaic.sampling import choose_per_shard
from penstock.order.mosaic.shuffle import ShuffleRule, shuffle_algorithm
from penstock.order.weights import StreamWeight
from penstock.order.world import Seat, World, replicate, seats
from tests.order.mosaic.defaults import resolve_batch_size, resolve_predownload, samples_per_rank

GOLDEN = Path(os.environ.get("PENSTOCK_GOLDEN", Path(__file__).parents[2] / "golden")) / "orders"
EPOCH_FILES = (
    "epoch_single_stream.json",
    "epoch_mixes.json",
    "epoch_batching.json",
    "epoch_resume.json",
    "v050_epoch.json",
)
OTHER_FILES = ("shuffle.json", "partition.json", "sampling.json", "replication.json", "iterations.json")

Case = dict[str, Any]

# Small cases make small blocks and few samples, which the plan says.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*longer than a shuffle block"),
    pytest.mark.filterwarnings("ignore:(Trying|Attempting) to partition"),
]


def cases(*files: str) -> list[Any]:
    found = []
    for file in files:
        for number, case in enumerate(json.loads((GOLDEN / file).read_text())["cases"]):
            found.append(pytest.param({**case, "file": file}, id=f"{Path(file).stem}-{number}"))
    return found


def recorded_kind(case: Case) -> type[Exception]:
    """The kind of error that was recorded; its words are the other library's own."""
    kind: type[Exception] = getattr(builtins, case["error"].partition(":")[0])
    return kind


def test_no_recorded_file_is_left_out() -> None:
    assert {file.name for file in GOLDEN.glob("*.json")} == {*EPOCH_FILES, *OTHER_FILES}


@pytest.mark.parametrize("case", cases("shuffle.json"))
def test_shuffles(case: Case) -> None:
    rule = ShuffleRule(**{name: case[name] for name in ("num_canonical_nodes", "seed", "epoch", "block_size")})
    order = shuffle_algorithm(case["algo"])(np.array(case["shard_sizes"]), rule)
    assert order.tolist() == case["ids"]


@pytest.mark.parametrize("case", cases("sampling.json"))
def test_samples_per_shard(case: Case) -> None:
    counts = choose_per_shard(
        np.array(case["samples_per_shard"]),
        case["choose"],
        granularity=case["granularity"],
        seed=case["seed"],
        epoch=case["epoch"],
        draws_anew=case["use_epoch"],
    )
    assert counts.tolist() == case["choose_per_shard"]


@pytest.mark.parametrize("case", cases("replication.json"))
def test_replicated_worlds(case: Case) -> None:
    world = World(**{name: case[name] for name in ("num_nodes", "ranks_per_node", "workers_per_rank")})
    if "error" in case:
        with pytest.raises(recorded_kind(case)) as caught:
            replicate(Seat(world=world), case["replication"])
        assert isinstance(caught.value, PenstockError)
        return
    found = []
    for seat in seats(world):
        for worker in range(world.workers_per_rank):
            real = Seat(world=world, node=seat.node, local_rank=seat.local_rank, worker=worker)
            small = replicate(real, case["replication"])
            shape = [small.world.num_nodes, small.world.ranks_per_node]
            found.append([*shape, small.node, small.rank, small.local_rank, small.worker])
    assert found == case["per_worker"]


@pytest.mark.parametrize("case", cases("partition.json"))
def test_partitions(case: Case) -> None:
    # An epoch in sequence of one shard shows the positions themselves.
    world = World(
        num_nodes=case["num_physical_nodes"],
        ranks_per_node=case["ranks_per_node"],
        workers_per_rank=case["workers_per_rank"],
    )
    options = MosaicOptions(partition_algo=case["algo"], num_canonical_nodes=case["num_canonical_nodes"])
    state = MosaicState(
        epoch=0,
        sample_in_epoch=case["drop_first"],
        num_canonical_nodes=case["num_canonical_nodes"],
        shuffle_seed=9176,
        initial_physical_nodes=case["initial_physical_nodes"],
    )
    plan = MosaicPlan.make([[case["num_samples"]]], options, num_nodes=world.num_nodes, state=state)
    check_grid(case, plan, Cursor(0, case["drop_first"]), world, case["batch_size"])


@pytest.mark.parametrize("case", cases(*EPOCH_FILES))
def test_epochs(case: Case) -> None:
    is_release_0_5 = case["file"].startswith("v050")
    if "error" in case and "derived" not in case:
        with pytest.raises(recorded_kind(case)) as caught:
            open_plan(case, is_release_0_5)
        assert isinstance(caught.value, PenstockError)
        return
    options, plan, at, world = open_plan(case, is_release_0_5)
    check_derived(case["derived"], options, plan, at, world)
    check_grid(case, plan, at, world, resolve_batch_size(options))


def open_plan(case: Case, is_release_0_5: bool) -> tuple[MosaicOptions, MosaicPlan, Cursor, World]:
    options = MosaicOptions(mosaic_version="0.5" if is_release_0_5 else "0.13", **case["args"])
    world = replicate(Seat(world=World(**case["world"])), options.replication or 1).world
    state = None if case["resume"] is None else MosaicState.from_dict(case["resume"])
    at = resume_at(state, case["epoch"])
    weights = [{name: value for name, value in stream.items() if name != "shards"} for stream in case["streams"]]
    plan = MosaicPlan.make(
        [stream["shards"] for stream in case["streams"]],
        options,
        num_nodes=world.num_nodes,
        weights=[StreamWeight(**weight) for weight in weights],
        state=state if state is not None and state.epoch == at.epoch else None,
    )
    return options, plan, at, world


def check_derived(derived: Case, options: MosaicOptions, plan: MosaicPlan, at: Cursor, world: World) -> None:
    shares = [stream.share for stream in plan.streams]
    found = {
        "epoch": at.epoch,
        "sample_in_epoch": at.position,
        "epoch_size": plan.epoch_size(at.epoch),
        "len": samples_per_rank(plan, world),
        "choose": [share.choose for share in shares],
        "repeat": [share.repeat for share in shares],
        "proportion": [share.proportion for share in shares],
        "predownload": resolve_predownload(options, plan.rules.num_canonical_nodes),
        "num_canonical_nodes": plan.rules.num_canonical_nodes,
        "shuffle_block_size": plan.rules.block_size,
        "shuffle_seed": plan.rules.shuffle_seed,
    }
    assert {name: found[name] for name in derived} == derived


def check_grid(case: Case, plan: MosaicPlan, at: Cursor, world: World, batch_size: int) -> None:
    global_batch_size = batch_size * world.num_ranks
    if "error" in case:
        with pytest.raises(recorded_kind(case)) as caught:
            plan.epoch_batches(at, world, global_batch_size)
        assert isinstance(caught.value, PenstockError)
        return
    grid = plan.epoch_batches(at, world, global_batch_size).by_worker(world.workers_per_rank)
    assert list(grid.shape) == case["shape"]
    assert grid.reshape(-1).tolist() == case["ids"]
    check_answers(plan, at, world, global_batch_size, grid)


def check_answers(plan: MosaicPlan, at: Cursor, world: World, global_batch_size: int, grid: Any) -> None:
    """What the plan tells a rank, step by step, is what its workers have in their rows, in turn."""
    for seat in seats(world):
        rows = grid[seat.node, seat.local_rank].transpose(1, 0, 2).reshape(-1, grid.shape[-1])
        expected = [row[row >= 0].tolist() for row in rows if row.max(initial=-1) >= 0]
        num_steps = plan.num_batches(at, seat, global_batch_size)
        steps = [plan.batch(at, step, seat, global_batch_size).tolist() for step in range(num_steps)]
        assert steps == expected


@pytest.mark.parametrize("case", cases("iterations.json"))
def test_iterations(case: Case) -> None:
    options = MosaicOptions(**case["args"])
    real = World(ranks_per_node=case["ranks"], workers_per_rank=max(case["workers"], 1))
    chairs = [replicate(seat, options.replication or 1) for seat in seats(real)]
    world = chairs[0].world
    state = MosaicState.from_dict(case["state"]) if "state" in case else None
    plan = MosaicPlan.make(
        case["shard_sizes"],
        options,
        num_nodes=1,
        weights=[StreamWeight(**weight) for weight in case["weights"]],
        state=state,
    )
    global_batch_size = resolve_batch_size(options) * world.num_ranks
    at = resume_at(state, 0)
    for epoch in range(case.get("epochs", 1)):
        at = at if epoch == 0 else resume_at(state, at.epoch + 1)
        for rank, seat in enumerate(chairs):
            num_steps = min(plan.num_batches(at, seat, global_batch_size), case.get("stop_after", 10**9))
            batches = [plan.batch(at, step, seat, global_batch_size) for step in range(num_steps)]
            assert [batch.tolist() for batch in batches] == case["per_rank"][rank][epoch]
        at = Cursor(at.epoch, at.position + count_samples(plan, at, num_steps, world, global_batch_size))
    assert plan.mosaic_state(at).to_dict() == case["state_dict"]
    assert samples_per_rank(plan, world) == case["len_dataset"]


def count_samples(plan: MosaicPlan, at: Cursor, num_steps: int, world: World, global_batch_size: int) -> int:
    return sum(len(plan.global_batch(at, step, world, global_batch_size)) for step in range(num_steps))
