"""Passes over a dataset with an index: the order engine says what comes, and counts what was delivered."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.blocks.block import Block
from penstock.data.dataset import StreamingDataset
from penstock.data.stream import Stream
from penstock.loaders.counting import DeliveredBatches
from penstock.sources.base import IndexedSource, as_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor

    from penstock.data.passes import Pass
    from penstock.types import Sample


@dataclass(frozen=True, slots=True)
class IndexedPass:
    """A pass that has begun."""

    delivered: DeliveredBatches
    begun: Pass
    rows: Callable[[Executor | None], Iterator[tuple[Block, None]]]  # of batches

    def deliver(self, _: None) -> None:
        """Count a batch as delivered."""
        self.delivered.add(self.begun)

    def finish(self, *, is_empty: bool) -> bool:  # noqa: ARG002
        """End the pass."""
        self.delivered.finish(self.begun)
        return True


class IndexedPasses:
    """Reads a dataset pass after pass, each the next epoch; its state is that of the whole job."""

    def __init__(self, dataset: StreamingDataset, batch_size: int, *, drop_last: bool) -> None:
        dataset.batch_size = batch_size
        self._dataset, self._drop_last = dataset, drop_last
        self._delivered = DeliveredBatches(dataset, drops_last=drop_last)

    def begin(self) -> IndexedPass:
        """Begin the next pass."""
        with self._dataset.readers.announced(0) as begun:
            samples = iter(self._dataset)
        self._delivered.begin(begun)
        return IndexedPass(self._delivered, begun, lambda _: self._rows(samples))

    def num_batches(self) -> int:
        """Count the batches of an epoch."""
        return self._delivered.num_batches()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Describe where the whole job stands after the batch delivered last."""
        return self._delivered.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state with the next pass, on as many ranks as there are now."""
        self._dataset.load_state_dict(state)
        self._delivered.forget()

    def _rows(self, samples: Iterator[Sample]) -> Iterator[tuple[Block, None]]:
        batch_size = self._dataset.batch_size or 1
        while rows := list(islice(samples, batch_size)):
            if len(rows) == batch_size or not self._drop_last:
                yield Block(rows), None


def as_dataset(
    source: Any, seed: int, *, shuffle: bool, rank: int | None, world_size: int | None, pads: bool
) -> StreamingDataset:
    """Make a dataset of a source, shuffled globally; a dataset stays as it is, unless it has yet to be shuffled."""
    if isinstance(source, StreamingDataset) and (source.shuffle or not shuffle):
        if rank is not None and world_size is not None:
            source.run.set_seat(rank, world_size)
        return source
    samples = as_source(source)
    # What is in memory may have no fingerprint: its order then fits any data of the same lengths. So does, as in the
    # first release, what functions made of data in memory.
    is_named = samples.fingerprint is not None and all(each.has_settings for each in samples.code_digests)
    is_nameless = not is_named and samples.has_random_rows
    return StreamingDataset(
        streams=[Stream(source=IndexedSource(samples, is_nameless=True) if is_nameless else samples)],
        shuffle=True,
        shuffle_seed=seed,
        rank=rank,
        world_size=world_size,
        epoch_end="pad" if pads else "trim",
    )
