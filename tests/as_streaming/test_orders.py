"""The original's functions of an order: those that deal a dataset, and those that draw samples of shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock.as_streaming  # noqa: F401
from penstock import Stream, StreamingDataset
from penstock.as_streaming.ranks import World
from penstock.errors import ConfigError
from tests.streaming import ids_of, write_samples

GOLDEN = Path(__file__).parents[1] / "golden/orders"
METHODS = ["random", "stratified", "per_stream", "device_per_stream"]


def dataset_of(folder: Path, method: Any, **options: Any) -> StreamingDataset:
    streams = [Stream(local=str(folder / name)) for name in ("a", "b")]
    return StreamingDataset(streams=streams, batch_size=4, shuffle=True, batching_method=method, **options)


@pytest.mark.parametrize("method", METHODS)
def test_work_is_what_the_ranks_get_in_the_order_of_the_original(tmp_path: Path, method: str) -> None:
    from streaming.base.batching import batching_methods, generate_work

    for first_id, name in ((0, "a"), (100, "b")):
        write_samples(tmp_path / name, 100, first_id=first_id)
    asked = dataset_of(tmp_path, "random")
    work = generate_work(method, asked, World(1, 2, 2, 0), epoch=0, sample_in_epoch=0)
    assert work.shape[:3] == (1, 2, 2)
    assert work.shape[4] == 4
    for rank in range(2):
        mine = dataset_of(tmp_path, method, order="mosaic", rank=rank, world_size=2)
        listed = work[0, rank].transpose(1, 0, 2).ravel()
        assert listed[listed >= 0].tolist() == ids_of(mine)
    assert np.array_equal(batching_methods[method](asked, World(1, 2, 2, 0), 0, 0), work)
    rest = generate_work(method, asked, World(1, 2, 2, 0), epoch=0, sample_in_epoch=16)
    assert set(rest[rest >= 0].tolist()) < set(work[work >= 0].tolist())


def test_work_needs_a_batch_size_and_goes_on_from_a_state(tmp_path: Path) -> None:
    from streaming.base.batching import generate_work

    write_samples(tmp_path, 60)
    world = World(1, 1, 1, 0)
    with pytest.raises(ConfigError, match="pass batch_size="):
        generate_work("random", StreamingDataset(local=str(tmp_path)), world, 0, 0)
    dataset = StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=True)
    before = generate_work("random", dataset, world, 0, 0)
    state = {"epoch": 0, "sample_in_epoch": 8, "num_canonical_nodes": 2, "shuffle_seed": 5, "initial_physical_nodes": 1}
    with pytest.warns(UserWarning, match="shuffle_seed=5"):
        dataset.load_state_dict(obj=state)
    seeded = StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=True, shuffle_seed=5, num_canonical_nodes=2)
    after = generate_work("random", dataset, world, 0, 0)
    assert np.array_equal(after, generate_work("random", seeded, world, 0, 0))
    assert not np.array_equal(after, before)


def test_samples_are_drawn_of_shards_as_there() -> None:
    from streaming.base.sampling import get_sampling

    for case in json.loads((GOLDEN / "sampling.json").read_text())["cases"]:
        wanted = case.pop("choose_per_shard")
        assert get_sampling(**case).tolist() == wanted


def test_a_variable_asks_for_the_order_of_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_samples(tmp_path, 60)
    options: dict[str, Any] = {"local": str(tmp_path), "batch_size": 4, "shuffle": True}
    native, mosaic = (ids_of(StreamingDataset(**options, order=order)) for order in ("native", "mosaic"))
    assert native != mosaic
    monkeypatch.setenv("PENSTOCK_ORDER", "mosaic")
    assert ids_of(StreamingDataset(**options)) == mosaic
    assert ids_of(StreamingDataset(**options, order="native")) == native
    monkeypatch.setenv("PENSTOCK_ORDER", "mozaic")
    with pytest.raises(ConfigError, match="unknown order 'mozaic'"):
        StreamingDataset(**options)
