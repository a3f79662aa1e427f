"""The real `datasets` library over a dataset of ours, in an environment of its own (make integrations)."""

from __future__ import annotations

import json
import pickle
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from penstock import StreamingDataset
from tests.streaming import ids_of, write_samples

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.datasets


@pytest.fixture
def dataset(tmp_path: Path) -> StreamingDataset:
    folder = write_samples(tmp_path, 203)
    return StreamingDataset(local=folder, shuffle=True, rank=1, world_size=3)


def test_it_has_the_samples_of_all_ranks_in_their_order(dataset: StreamingDataset, tmp_path: Path) -> None:
    alone = StreamingDataset(local=tmp_path, shuffle=True)
    epochs = [ids_of(alone) for _ in range(2)]
    made = dataset.to_hf()
    assert next(iter(made))["id"] == epochs[0][0]
    assert ids_of(made) == ids_of(made) == epochs[0]
    made.set_epoch(1)
    assert ids_of(made) == ids_of(pickle.loads(pickle.dumps(made))) == epochs[1]
    assert dataset.next_epoch == 0


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_state_goes_on_through_what_was_made_of_it(dataset: StreamingDataset, tmp_path: Path, epoch: int) -> None:
    def mapped() -> object:
        made = dataset.to_hf().map(lambda sample: {"id": sample["id"]})
        made.set_epoch(epoch)
        return made

    first = mapped()
    whole = ids_of(first)  # type: ignore[arg-type]
    begun = ids_of(islice(first, 77))  # type: ignore[call-overload]
    state = json.loads(json.dumps(first.state_dict()))  # type: ignore[attr-defined]
    dataset.close()
    again = mapped()
    again.load_state_dict(state)  # type: ignore[attr-defined]
    read = dataset.stats().samples
    assert begun + ids_of(again) == whole  # type: ignore[arg-type]
    assert dataset.stats().samples - read <= 203 - 77, "nothing was read again"
