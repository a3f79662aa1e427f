"""What used to happen in silence: states of passes that have not begun, and seeds that a state overrides."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from penstock import StreamingDataset
from penstock.errors import ResumeError
from tests.streaming import ids_of, write_samples

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("data"), 60)


def open_dataset(folder: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(**{"local": folder, "shuffle": True, "batch_size": 4, **options})


@pytest.mark.parametrize("from_beginning", [True, False])
def test_no_samples_were_delivered_of_a_pass_that_has_not_begun(folder: Path, from_beginning: bool) -> None:
    dataset = open_dataset(folder)
    with pytest.raises(ResumeError, match="num_samples=8 .* no pass has started"):
        dataset.state_dict(num_samples=8, from_beginning=from_beginning)
    assert dataset.state_dict(num_samples=0, from_beginning=from_beginning) == dataset.state_dict()
    list(dataset)
    dataset.set_epoch(3)
    with pytest.raises(ResumeError, match="no pass has started"):
        dataset.state_dict(num_samples=8, from_beginning=from_beginning)


def test_a_state_that_was_just_loaded_may_be_taken_with_its_own_count(folder: Path) -> None:
    dataset = open_dataset(folder)
    list(islice(dataset, 12))
    state = dataset.state_dict(num_samples=12)
    other = open_dataset(folder)
    other.load_state_dict(state)
    assert other.state_dict(num_samples=12) == other.state_dict(num_samples=0) == other.state_dict()
    with pytest.raises(ResumeError, match="num_samples=16"):
        other.state_dict(num_samples=16)


@pytest.mark.parametrize("order", ["native", "mosaic"])
def test_a_state_that_overrides_another_seed_says_so(folder: Path, order: str) -> None:
    options = {"order": order, "num_canonical_nodes": 1}
    dataset = open_dataset(folder, shuffle_seed=5, **options)
    taken = ids_of(islice(dataset, 12))
    state = dataset.state_dict()
    open_dataset(folder, shuffle_seed=5, **options).load_state_dict(state)  # the same one is no surprise
    other = open_dataset(folder, shuffle_seed=6, **options)
    with pytest.warns(UserWarning, match="saved with shuffle_seed=5, but this dataset has shuffle_seed=6") as caught:
        other.load_state_dict(state)
    assert caught[0].filename == __file__  # at the line that loads it
    assert sorted(taken + ids_of(other)) == list(range(60))


def test_what_is_no_state_is_refused_when_it_is_loaded_and_changes_nothing(folder: Path) -> None:
    dataset = open_dataset(folder)
    before = dataset.state_dict()
    for state, words in (({"epoch": 0}, "fields 'epoch'"), ({**before, "order": "mosaic"}, "set order='mosaic'")):
        with pytest.raises(ResumeError, match=words):
            open_dataset(folder, order="native").load_state_dict(state)
    with pytest.raises(ResumeError, match="fields 'epoch'"):
        dataset.load_state_dict({"epoch": 0})
    assert dataset.state_dict() == before


def test_without_a_batch_size_only_what_ranks_cannot_share_is_dropped(folder: Path) -> None:
    ranks = [open_dataset(folder, batch_size=None, epoch_end="drop", rank=rank, world_size=8) for rank in range(8)]
    ids = [ids_of(dataset) for dataset in ranks]
    assert [len(dataset) for dataset in ranks] == [len(of_rank) for of_rank in ids] == [60 // 8] * 8
    assert len({number for of_rank in ids for number in of_rank}) == 56
