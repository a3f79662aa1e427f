"""What the Trainer does with a loader, done with torch's own parts; tests/integrations has the real one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import BatchSampler, DataLoader

from penstock import AsyncDataLoader, MemoryShardedSource, StreamingDataLoader, StreamingDataset
from penstock.integrations.trainer import StreamingTrainerMixin
from penstock.loaders.trainer import BatchNumbers, NumberedBatches
from tests.streaming import batch_ids, write_samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class SkipNumbers(BatchSampler):
    """Leaves out the first batches of a sampler, as Accelerate does for the Trainer."""

    def __init__(self, inner: BatchNumbers, count: int) -> None:
        self.inner, self.count = inner, count

    def __iter__(self) -> Iterator[list[int]]:
        return (numbers for place, numbers in enumerate(self.inner) if place >= self.count)


def open_loader(folder: Path, **options: Any) -> StreamingDataLoader:
    return StreamingDataLoader(StreamingDataset(local=folder, shuffle=True), batch_size=8, **options)


def run_epoch(batches: NumberedBatches, skipped: int = 0, most: int | None = None) -> list[list[int]]:
    numbers: Any = SkipNumbers(BatchNumbers(batches), skipped) if skipped else BatchNumbers(batches)
    loader: Any = DataLoader(batches, batch_sampler=numbers, collate_fn=lambda given: given[0])  # type: ignore[arg-type]
    return batch_ids(batch for _, batch in zip(range(most or 1000), loader, strict=False))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("taken", [1, 11, 25])
def test_the_first_batch_asked_for_follows_the_state(tmp_path: Path, taken: int, drop_last: bool) -> None:
    folder = write_samples(tmp_path, 203)
    plain = open_loader(folder, drop_last=drop_last)
    epochs = [batch_ids(plain) for _ in range(3)]
    begun = NumberedBatches(open_loader(folder, drop_last=drop_last), lambda: None)
    assert run_epoch(begun) == epochs[0]
    assert run_epoch(begun, most=taken) == epochs[1][:taken]
    state = json.loads(json.dumps(begun.loader.state_dict()))
    resumed = NumberedBatches(open_loader(folder, drop_last=drop_last, num_workers=1), lambda: state)
    assert len(BatchNumbers(resumed)) == len(epochs[0])
    rest = epochs[1][taken:] or epochs[2]
    assert run_epoch(resumed, taken if epochs[1][taken:] else 0) == rest
    assert resumed.loader.num_samples_yielded == sum(map(len, rest))


def test_without_a_state_batches_are_read_again_with_a_warning(tmp_path: Path) -> None:
    folder = write_samples(tmp_path, 203)
    plain = open_loader(folder)
    epochs = [batch_ids(plain) for _ in range(2)]
    resumed = NumberedBatches(open_loader(folder), lambda: None)
    BatchNumbers(resumed).batch_sampler.set_epoch(1)
    with pytest.warns(UserWarning, match="5 batches are read again"):
        assert run_epoch(resumed, 5) == epochs[1][5:]


def test_a_loader_without_a_length_ends_where_it_ends() -> None:
    source = MemoryShardedSource([{"id": n} for n in range(40)], num_shards=2).filter(lambda row: row["id"] % 2)
    batches = NumberedBatches(AsyncDataLoader(source, 5, output="torch"), lambda: None)
    with pytest.raises(TypeError, match="does not know"):
        len(BatchNumbers(batches))
    assert len(run_epoch(batches)) == len(run_epoch(batches)) == 4


def test_what_is_no_data_of_ours_is_refused() -> None:
    trainer = StreamingTrainerMixin()
    trainer.train_dataset, trainer.args, trainer._train_batch_size = [1, 2], None, 8  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="train_dataset is a list: pass a StreamingDataset"):
        trainer.get_train_dataloader()


def test_lightning_is_told_the_batches_of_the_whole_epoch(tmp_path: Path) -> None:
    """It counts those before a resume itself, and would end the epoch too soon."""
    asker: dict[str, Any] = {"__name__": "lightning.fabric.utilities.data"}
    exec("def sized_len(loader): return len(loader)", asker)
    folder = write_samples(tmp_path, 203)
    for drop_last, length in ((False, 26), (True, 25)):
        begun = open_loader(folder, drop_last=drop_last)
        next(iter(begun))
        resumed = open_loader(folder, drop_last=drop_last)
        assert asker["sized_len"](resumed) == length
        resumed.load_state_dict(begun.state_dict())
        assert asker["sized_len"](resumed) == length
    assert asker["sized_len"](StreamingDataLoader([1, 2, 3])) == 3
