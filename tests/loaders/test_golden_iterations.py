"""Iterations recorded from mosaicml-streaming, made again through real loaders, each rank in its own world."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from penstock import Stream, StreamingDataLoader, StreamingDataset
from tests.streaming import batch_ids, write_shards

GOLDEN = Path(os.environ.get("PENSTOCK_GOLDEN", Path(__file__).parents[1] / "golden")) / "orders"
CASES = json.loads((GOLDEN / "iterations.json").read_text())["cases"]
RECORDED_STATE = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes")

Case = dict[str, Any]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*longer than a shuffle block"),
    pytest.mark.filterwarnings("ignore:(Trying|Attempting) to partition"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One dataset for each list of shard sizes, its samples numbered as the recordings number them."""
    found = {}
    for case in CASES:
        for sizes, first_id in zip(case["shard_sizes"], case["first_id"], strict=True):
            name = f"{sizes} {first_id}"
            if name not in found:
                found[name] = write_shards(tmp_path_factory.mktemp("golden"), sizes, first_id=first_id)
    return found


def open_case(case: Case, folders: dict[str, Path], rank: int, world: str, monkeypatch: Any) -> StreamingDataset:
    streams = [
        Stream(local=folders[f"{sizes} {first_id}"], name=str(number), **weight)
        for number, (sizes, first_id, weight) in enumerate(
            zip(case["shard_sizes"], case["first_id"], case["weights"], strict=True)
        )
    ]
    explicit: Case = {}
    if world == "explicit":
        explicit = {"rank": rank, "world_size": case["ranks"], "num_nodes": 1}
    else:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(case["ranks"]))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(case["ranks"]))
    return StreamingDataset(streams=streams, order="mosaic", **explicit, **case["args"])


@pytest.mark.parametrize("world", ["explicit", "environment"])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_streaming_loader(number: int, world: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[number]
    for rank in range(case["ranks"]):
        dataset = open_case(case, folders, rank, world, monkeypatch)
        loader = StreamingDataLoader(dataset, num_workers=case["workers"])
        if "state" in case:
            loader.load_state_dict(case["state"])
        for recorded in case["per_rank"][rank]:
            assert batch_ids(take(loader, case)) == recorded
        state = loader.state_dict()
        assert {name: state[name] for name in RECORDED_STATE} == case["state_dict"]
        assert len(dataset) == case["len_dataset"]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_stock_loader(number: int, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[number]
    for rank in range(case["ranks"]):
        dataset = open_case(case, folders, rank, "explicit", monkeypatch)
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=dataset.batch_size, num_workers=case["workers"])
        if "state" in case:
            dataset.load_state_dict(case["state"])
        for recorded in case["per_rank"][rank]:
            batches = batch_ids(take(loader, case))
            assert batches == recorded
        replicas = dataset.replication or 1
        delivered = sum(map(len, batches)) * case["ranks"] // replicas
        state = dataset.state_dict(num_samples=delivered, from_beginning=False)
        assert {name: state[name] for name in RECORDED_STATE} == case["state_dict"]
        assert len(loader) == case["len_loader"]


def take(loader: Any, case: Case) -> list[Any]:
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == case.get("stop_after"):
            break
    return batches
