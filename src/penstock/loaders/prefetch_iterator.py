"""`PrefetchIterator` and `create_data_iterator`: anything that gives samples, read ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.loaders.async_loader import AsyncDataLoader
from penstock.loaders.batch_threads import make_batches
from penstock.sources.hf import wrap_hf_dataset
from penstock.units import check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Self


class PrefetchIterator:
    """The items of anything, in their order, taken ahead of you in a thread. `close` it, or leave it alone.

    A failure comes where its item would have come, however long that takes; nothing is ever cut off in silence.

    Args:
        source: Anything that can be iterated over.
        buffer_size: How many items are kept ready.
        num_workers: How many threads apply the transform.
        transform: Applied to each item, ahead of you as well.
    """

    def __init__(
        self,
        source: Iterable[Any],
        buffer_size: int = 4,
        num_workers: int = 2,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        check_whole("buffer_size", buffer_size, 1)
        check_whole("num_workers", num_workers, 1)
        if not hasattr(source, "__iter__"):
            raise ConfigError(f"a {type(source).__name__} cannot be iterated over")
        apply = transform or _same
        self._items = make_batches(
            lambda _: ((item, None) for item in source), apply, num_threads=num_workers, num_ahead=buffer_size
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._items)[0]

    def close(self) -> None:
        """End the threads."""
        self._items.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _same(item: Any) -> Any:
    return item


def create_data_iterator(
    dataset: Any,
    batch_size: int,
    shuffle: bool = True,
    drop_last: bool = False,
    prefetch: bool = True,
    *,
    prefetch_buffer: int = 4,
    shuffle_buffer: int = 10_000,
    seed: int | None = None,
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
        seed: Seeds the shuffling.
        **options: Those of `AsyncDataLoader`.
    """
    loader = AsyncDataLoader(
        wrap_hf_dataset(dataset),
        batch_size,
        prefetch,
        prefetch_buffer_size=prefetch_buffer,
        shuffle_buffer_size=shuffle_buffer if shuffle else None,
        drop_last=drop_last,
        seed=seed,
        **options,
    )
    return iter(loader)
