"""Functions of EasyDeL's EasyData, each in a few lines over penstock's own: see `docs/migrating.md`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.loaders.async_loader import AsyncDataLoader
from penstock.sources.memory import wrap_hf_dataset
from penstock.units import check_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.types import Sample

__all__ = ["batch_iterator", "create_data_iterator"]


def batch_iterator(source: Iterable[Sample], batch_size: int, drop_last: bool = True) -> Iterator[list[Sample]]:
    """Return lists of `batch_size` samples; what is left over at the end is dropped, or is a shorter list."""
    check_whole("batch_size", batch_size, 1)
    iterator = iter(source)
    while batch := list(islice(iterator, batch_size)):
        if len(batch) == batch_size or not drop_last:
            yield batch


def create_data_iterator(
    dataset: Any,
    batch_size: int,
    shuffle: bool = True,
    drop_last: bool = False,
    prefetch: bool = True,
    *,
    prefetch_buffer: int = 4,
    shuffle_buffer: int = 10_000,
    **options: Any,
) -> Iterator[Any]:
    """Begin a pass over batches of a dataset of the Hugging Face library, of a source, or of a list of samples.

    Args:
        dataset: The dataset.
        batch_size: Samples per batch.
        shuffle: Shuffle with a buffer.
        drop_last: Leave out a last batch that is not full.
        prefetch: Read ahead, in threads.
        prefetch_buffer: How many batches are kept ready.
        shuffle_buffer: How many samples the buffer holds.
        **options: Those of `AsyncDataLoader`, such as `seed`.
    """
    loader = AsyncDataLoader(
        wrap_hf_dataset(dataset),
        batch_size,
        prefetch,
        prefetch_buffer_size=prefetch_buffer,
        shuffle_buffer_size=shuffle_buffer if shuffle else None,
        drop_last=drop_last,
        **options,
    )
    return iter(loader)
