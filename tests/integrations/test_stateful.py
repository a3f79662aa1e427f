"""torchdata's StatefulDataLoader: exact resume in the middle of an epoch, with as many workers as before."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from penstock import StreamingDataset
from tests.streaming import batch_ids, write_samples

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls what torch no longer wants
]

BATCH = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("data"), 67)


def open_loader(folder: Path, workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=BATCH)
    return StatefulDataLoader(dataset, batch_size=BATCH, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [1, 4, 7, 16])
def test_resuming(folder: Path, workers: int, steps: int) -> None:
    loader = open_loader(folder, workers)
    epochs = [batch_ids(loader) for _ in range(4)]
    assert len({str(epoch) for epoch in epochs}) == 4
    loader = open_loader(folder, workers)
    batch_ids(loader)
    taken = batch_ids(islice(loader, steps))
    state = loader.state_dict()
    other = open_loader(folder, workers)
    other.load_state_dict(state)
    assert taken == epochs[1][:steps]
    assert batch_ids(other) == epochs[1][steps:]
    assert batch_ids(other) == epochs[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_between_epochs(folder: Path, workers: int) -> None:
    loader = open_loader(folder, workers)
    epochs = [batch_ids(loader) for _ in range(3)]
    loader = open_loader(folder, workers)
    batch_ids(loader)
    other = open_loader(folder, workers)
    other.load_state_dict(loader.state_dict())
    left = batch_ids(other) or batch_ids(other)  # the loader may end the old epoch first
    assert left == epochs[1]


def test_another_number_of_workers_is_an_error(folder: Path) -> None:
    loader = open_loader(folder, 2)
    list(islice(loader, 3))
    other = open_loader(folder, 1)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(Exception, match="workers"):
        list(other)
