"""`World`: who a process is, with ranks that are replicated and the workers of a loader."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch.utils.data

import penstock.as_streaming  # noqa: F401
from penstock.as_streaming.ranks import World
from penstock.errors import ConfigError

GOLDEN = Path(__file__).parents[1] / "golden/orders"


def test_it_says_all_that_the_original_says() -> None:
    world = World(2, 4, 3, 17)
    said = world.to_json()
    assert said == {
        "node": 1,
        "num_nodes": 2,
        "is_multinode": True,
        "rank": 5,
        "num_ranks": 8,
        "rank_of_node": 1,
        "ranks_per_node": 4,
        "worker": 17,
        "num_workers": 24,
        "worker_of_node": 5,
        "workers_per_node": 12,
        "worker_of_rank": 2,
        "workers_per_rank": 3,
        "is_leader": False,
        "is_local_leader": False,
    }
    assert json.loads(json.dumps(said)) == said
    assert {name: getattr(world, name) for name in said} == said
    assert world.copy().to_json() == pickle.loads(pickle.dumps(world)).to_json() == said


def test_replicated_ranks_are_those_of_the_original() -> None:
    for case in json.loads((GOLDEN / "replication.json").read_text())["cases"]:
        size = case["num_nodes"], case["ranks_per_node"], case["workers_per_rank"]
        for worker, wanted in enumerate(case.get("per_worker", [])):  # some cases are errors
            smaller = World(*size, worker).replicate(case["replication"]).to_json()
            assert [smaller[column] for column in case["columns"]] == wanted


@pytest.mark.parametrize("replication", [-1, 0, 3, 64])
def test_ranks_that_cannot_be_replicated_are_an_error(replication: int) -> None:
    with pytest.raises(ConfigError, match="does not divide the 8 ranks evenly"):
        World(2, 4, 1, 0).replicate(replication)


class Ranks(torch.utils.data.IterableDataset[int]):
    def __iter__(self):  # type: ignore[no-untyped-def]
        world = World(2, 4, 1, 5).detect_workers()
        yield [world.rank, world.worker_of_rank, world.workers_per_rank, world.worker]


def test_workers_of_a_loader_are_detected() -> None:
    assert World(2, 4, 3, 17).detect_workers().to_json() == World(2, 4, 1, 5).to_json()
    loader = torch.utils.data.DataLoader(Ranks(), batch_size=None, num_workers=2)
    assert list(loader) == [[5, 0, 2, 10], [5, 1, 2, 11]]
