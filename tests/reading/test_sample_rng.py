"""A generator for each sample: the same draws after a resume, on any world and in any workers."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import Stream, StreamingDataLoader, StreamingDataset
from penstock.errors import ConfigError
from penstock.reading.sample_rng import RowDraws, SampleRng, keys_of_ids, keys_of_positions, takes_rng
from tests.streaming import write_samples

if TYPE_CHECKING:
    from pathlib import Path

NUM_SAMPLES = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_samples(tmp_path / "data", NUM_SAMPLES)


def crop(sample: dict[str, Any], rng: SampleRng) -> dict[str, Any]:
    return {"id": sample["id"], "crop": int(rng.integers(1 << 40)), "key": rng.key}


def crop_columns(columns: dict[str, Any], rng: RowDraws) -> dict[str, Any]:
    return {
        "id": columns["id"],
        "crop": rng.integers(0, 1 << 40),
        "box": rng.random(2),
        "key": rng.keys >> np.uint64(1),
    }


def crop_by_globals(sample: dict[str, Any]) -> dict[str, Any]:
    import torch

    drawn = random.random(), np.random.random(), float(torch.rand(()))
    return {"id": sample["id"], "crop": repr(drawn)}


class CropsItself(StreamingDataset):
    def get_item(self, sample_id: int, *retry: Any, **named: Any) -> Any:
        return crop_by_globals(super().get_item(sample_id))


def epoch_of(
    dataset: StreamingDataset, *, batch_size: int = 4, num_workers: int = 0, state: Any = None
) -> dict[int, Any]:
    """Return what each sample became in a pass."""
    loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=num_workers)
    if state is not None:
        loader.load_state_dict(state)
    return {
        number: drawn
        for batch in loader
        for number, drawn in zip(batch["id"].tolist(), np.asarray(batch["crop"]).tolist(), strict=True)
    }


ORDERS: list[dict[str, Any]] = [{}, {"order": "mosaic", "num_canonical_nodes": 2}]
WAYS: list[tuple[type[StreamingDataset], dict[str, Any]]] = [
    (StreamingDataset, {"sample_transform": crop}),
    (StreamingDataset, {"sample_transform": crop_by_globals, "seed_globals": True}),
    (StreamingDataset, {"batch_transform": crop_columns, "columnar": True}),
    (CropsItself, {"seed_globals": True}),
]


@pytest.mark.parametrize("order", ORDERS, ids=["native", "mosaic"])
@pytest.mark.parametrize("way", WAYS, ids=["rng", "globals", "columns", "overridden"])
def test_same_draws_on_any_world(folder: Path, way: tuple[type[StreamingDataset], dict[str, Any]], order: Any) -> None:
    make = partial(way[0], local=folder, shuffle=True, **way[1], **order)
    alone = epoch_of(make())
    assert len(set(alone.values())) == NUM_SAMPLES  # no two samples draw the same
    for num_ranks, batch_size in [(2, 2), (3, 4)]:
        together: dict[int, Any] = {}
        for rank in range(num_ranks):
            made = make(rank=rank, world_size=num_ranks, num_nodes=1)
            together |= epoch_of(made, batch_size=batch_size)
        assert together == alone


@pytest.mark.parametrize("way", WAYS, ids=["rng", "globals", "columns", "overridden"])
def test_same_draws_after_a_resume_with_other_workers(
    folder: Path, way: tuple[type[StreamingDataset], dict[str, Any]]
) -> None:
    make = partial(way[0], local=folder, shuffle=True, **way[1])
    whole = epoch_of(make())
    dataset = make()
    loader = StreamingDataLoader(dataset, batch_size=4)
    batches = iter(loader)
    for _ in range(6):
        next(batches)
    state = loader.state_dict()
    rest = epoch_of(make(shuffle_seed=9176), num_workers=2, state=state)
    assert len(rest) == NUM_SAMPLES - 24
    assert rest == {number: whole[number] for number in rest}


def test_epochs_seeds_and_repeats_draw_differently(folder: Path) -> None:
    dataset = StreamingDataset(local=folder, shuffle=True, sample_transform=crop)
    first, second = epoch_of(dataset), epoch_of(dataset)
    other = epoch_of(StreamingDataset(local=folder, shuffle=True, shuffle_seed=1, sample_transform=crop))
    assert not {*first.values()} & ({*second.values()} | {*other.values()})
    twice = StreamingDataset(streams=[Stream(local=folder, repeat=2)], shuffle=True, sample_transform=crop)
    drawn = [sample["crop"] for sample in twice]
    assert len(drawn) == len(set(drawn)) == 2 * NUM_SAMPLES


def test_samples_by_number_draw_by_their_number(folder: Path) -> None:
    dataset = StreamingDataset(local=folder, shuffle=True, sample_transform=crop)
    assert (
        dataset[7]
        == dataset[7]
        == dataset[5:9][2]
        == next(iter(dataset.as_source().open_shard_at_row(dataset.shard_names[0], 7)))
    )
    columns = StreamingDataset(local=folder, columnar=True, batch_transform=crop_columns)
    assert list(columns.read_columns([3, 7])["crop"]) == [columns.read_columns([n])["crop"][0] for n in (3, 7)]


def test_a_batch_draws_as_its_samples_do(folder: Path) -> None:
    by_row = {sample["id"]: sample["key"] for sample in StreamingDataset(local=folder, sample_transform=crop)}
    columns = StreamingDataset(local=folder, columnar=True, batch_transform=crop_columns, batch_size=7)
    batches = list(columns)
    by_column = {
        n: key for batch in batches for n, key in zip(batch["id"].tolist(), batch["key"].tolist(), strict=True)
    }
    assert by_column == by_row
    assert {batch["box"].shape[1] for batch in batches} == {2}


def test_skipped_samples_move_no_draws(folder: Path) -> None:
    bad = {3, 17, 40}

    def refuse_some(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] in bad:
            raise ValueError("damaged")
        return sample

    whole = epoch_of(StreamingDataset(local=folder, shuffle=True, sample_transform=crop))
    streams = [Stream(local=folder, sample_transform=refuse_some)]
    skipping = StreamingDataset(streams=streams, shuffle=True, sample_transform=crop, on_error="skip")
    assert epoch_of(skipping) == {number: drawn for number, drawn in whole.items() if number not in bad}


def test_globals_of_the_process_stay_as_they_were(folder: Path) -> None:
    random.seed(3)
    np.random.seed(3)
    expected = random.Random(3).random(), np.random.RandomState(3).random()
    list(StreamingDataset(local=folder, sample_transform=crop_by_globals, seed_globals=True))
    assert (random.random(), np.random.random()) == expected


def test_globals_are_refused_where_threads_share_them(folder: Path) -> None:
    with pytest.raises(ConfigError, match="take rng in batch_transform="):
        StreamingDataset(local=folder, columnar=True, batch_transform=crop_columns, seed_globals=True)


def test_who_asks_for_a_generator() -> None:
    class Crops:
        def __call__(self, sample: Any, rng: SampleRng) -> Any:
            return sample

    assert takes_rng(crop)
    assert takes_rng(Crops())
    assert takes_rng(partial(crop))
    assert not takes_rng(partial(crop, rng=SampleRng()))
    assert not takes_rng(lambda sample: sample)
    assert not takes_rng(print)


def test_draws_never_change() -> None:
    """These numbers are those of all releases: change them only if runs may draw anew."""
    keys = keys_of_positions(9176, 2, np.array([0, 1, 10**12]))
    assert keys.tolist() == [12055907726035977853, 15656166810934604995, 11851854485396271657]
    assert keys_of_ids(9176, np.array([5])).tolist() == [15060442529849166864]
    draws = RowDraws(keys)
    assert draws.integers(0, 1000).tolist() == [908, 775, 789]
    assert draws.integers(0, 1000, 2).tolist() == [[183, 424], [575, 300], [329, 208]]
    assert np.round(draws.normal(), 6).tolist() == [-0.066452, 2.336719, -1.194411]
    assert SampleRng().begin(int(keys[0])).random(2).round(6).tolist() == [0.662929, 0.510508]


def test_draws_are_well_spread() -> None:
    draws = RowDraws(keys_of_positions(1, 0, np.arange(20_000)))
    uniform, normal = draws.random(), draws.normal()
    counts = np.bincount((uniform * 50).astype(int), minlength=50)
    assert ((counts - 400) ** 2 / 400).sum() < 95  # chi squared, 49 degrees of freedom
    assert abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < 0.03
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.03
