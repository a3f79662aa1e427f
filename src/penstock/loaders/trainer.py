"""Batches for the `Trainer` of transformers, which resumes where it was without reading again what it has trained on.

The Trainer resumes by asking for batch number n of an epoch: it leaves out the first numbers of a batch sampler. So its
loader has numbers of batches for a sampler, and the first one that is asked for says that the state is to be loaded.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from penstock.data.dataset import StreamingDataset
from penstock.errors import ConfigError
from penstock.extras import require
from penstock.loaders.async_loader import AsyncDataLoader
from penstock.sources.base import ShardedSource
from penstock.user_warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = "penstock"  # what the state is called in `trainer_state.json`


class StreamingTrainerMixin:
    """Makes a `Trainer` of transformers, or a class made of it, train on a `StreamingDataset` and resume at once.

        class MyTrainer(StreamingTrainerMixin, Trainer):
            pass

        trainer = MyTrainer(model=model, args=args, train_dataset=StreamingDataset(remote="s3://bucket/train"))
        trainer.train(resume_from_checkpoint=True)

    Where the loader is stands in the `trainer_state.json` of each checkpoint. `train_dataset` may also be a
    `ShardedSource`; for a loader of your own, override `get_streaming_loader`.
    """

    args: Any
    state: Any
    train_dataset: Any
    data_collator: Any
    _batches: NumberedBatches

    def get_streaming_loader(self) -> Any:
        """Return the loader of batches for training: one of penstock's, which has a state."""
        dataset, args, size = self.train_dataset, self.args, self._train_batch_size  # type: ignore[attr-defined]
        if isinstance(dataset, ShardedSource):
            return AsyncDataLoader(dataset, size, seed=args.data_seed or args.seed, output="torch")
        if not isinstance(dataset, StreamingDataset):
            raise ConfigError(
                f"train_dataset is a {type(dataset).__name__}: pass a StreamingDataset or a ShardedSource, or override"
                " get_streaming_loader"
            )
        from penstock.loaders.torch import StreamingDataLoader

        torch = require("torch", extra="torch", purpose="StreamingTrainerMixin")
        options = {"persistent_workers": args.dataloader_persistent_workers} if args.dataloader_num_workers else {}
        return StreamingDataLoader(
            dataset,
            batch_size=size,
            num_workers=args.dataloader_num_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            drop_last=args.dataloader_drop_last,
            pin_memory=args.dataloader_pin_memory and torch.cuda.is_available(),
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, "Training"),  # type: ignore[attr-defined]
            **options,
        )

    def get_train_dataloader(self) -> Any:
        """Return a torch loader that the Trainer can have begin at any batch."""
        torch = require("torch", extra="torch", purpose="StreamingTrainerMixin")
        self._batches = NumberedBatches(self.get_streaming_loader(), lambda: self.state.stateful_callbacks.get(_NAME))
        return torch.utils.data.DataLoader(
            self._batches, batch_sampler=BatchNumbers(self._batches), collate_fn=itemgetter(0)
        )

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        self.state.stateful_callbacks[_NAME] = self._batches.loader.state_dict()
        return super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]


class NumberedBatches:
    """The batches of a loader by their numbers in an epoch, in order; the first one may be any."""

    def __init__(self, loader: Any, find_state: Any) -> None:
        self.loader, self._find_state = loader, find_state
        self.epoch = 0
        self.length: int | None = None  # of an epoch; not of what is left of one that a state is in
        with suppress(TypeError):  # it is not known
            self.length = len(loader)
        self._batches: Iterator[Any] = iter(())
        self._next: int | None = None

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        """Return the one batch that has a number; the end of the loader is that of the epoch."""
        (number,) = numbers
        if number != self._next:
            self._batches = self._begin(number)
        self._next = number + 1
        batch = next(self._batches)
        if self._next == self.length:
            next(
                self._batches, None
            )  # the state has to know that nothing is left, not even what `drop_last` leaves out
        return [batch]

    def _begin(self, number: int) -> Iterator[Any]:
        state = self._find_state() if self._next is None else None
        if state is not None:
            self.loader.load_state_dict(state)
        elif number:
            warn_user(
                "the checkpoint has no state of the loader, because another Trainer saved it:"
                f" {number} batches are read again to find the place"
            )
            self.loader.set_epoch(self.epoch)
        return islice(self.loader, 0 if state is not None else number, None)


class BatchNumbers:
    """The numbers of the batches of an epoch, as a batch sampler; without an end where their number is not known."""

    def __init__(self, batches: NumberedBatches) -> None:
        self._batches = batches

    @property
    def batch_sampler(self) -> BatchNumbers:
        """Where the Trainer looks for what has an epoch to set."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Note the epoch of the Trainer, for a checkpoint that has no state; loaders count by themselves."""
        self._batches.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        numbers = count() if self._batches.length is None else range(self._batches.length)
        return ([number] for number in numbers)

    def __len__(self) -> int:
        if self._batches.length is None:
            raise TypeError("the loader does not know how many batches it has")
        return self._batches.length
