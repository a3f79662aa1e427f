"""Loaders of others: what they take for a dataset, and what they must not make of the batches of one."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.data.seat import worker_of
from penstock.errors import ConfigError
from penstock.user_warnings import warn_user

__all__ = ["IterableDataset", "asked_at_once", "refuse_resharding", "warn_of_other_batches"]

T = TypeVar("T")

# torch's own class, where there is torch, so that its loaders know what a dataset is.
if TYPE_CHECKING:
    from types import FrameType

    from torch.utils.data import IterableDataset
else:
    if find_spec("torch") is None:

        class IterableDataset(Generic[T]):
            """Stands in where there is no torch."""

    else:
        from torch.utils.data import IterableDataset

_WANTED = "possibly_batched_index"  # what torch's fetchers call the list of what they are asked for
_MOST_FRAMES = 8  # between this dataset and the fetcher are at most a few wrappers


def warn_of_other_batches(batch_size: int | None) -> None:
    """Warn if the loader that asks for samples now makes batches of another size than the dataset was told."""
    wanted = asked_at_once()
    if batch_size is None or wanted in (None, batch_size) or worker_of()[0] != 0:
        return
    warn_user(
        f"the loader makes batches of {wanted} samples, but its dataset has batch_size={batch_size}: the batches"
        " are not those of the planned order, and with workers the state of the dataset would be wrong. Pass the"
        " same batch_size to both, or use penstock's StreamingDataLoader, which sets the batch size of its"
        " dataset"
    )


def asked_at_once() -> int | None:
    """Return how many samples the torch loader that asks for one right now puts into a batch; None if there is none.

    A loader of another kind, or a torch that calls things otherwise, is none: nothing but a warning depends on it.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        if _WANTED in frame.f_code.co_varnames:
            wanted = frame.f_locals.get(_WANTED)
            return len(wanted) if isinstance(wanted, list | tuple) else None
        frame = frame.f_back
    return None


# Of Hugging Face Accelerate: classes that hand each rank a part of what their dataset or loader gives.
_DIVIDERS = {("accelerate.data_loader", "IterableDatasetShard"), ("accelerate.data_loader", "DataLoaderDispatcher")}


def refuse_resharding(num_ranks: int) -> None:
    """Raise if whoever iterates now would drop samples, because it divides them among ranks again."""
    if num_ranks == 1 or "accelerate.data_loader" not in sys.modules:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if owner is not None and (type(owner).__module__, type(owner).__name__) in _DIVIDERS:
            raise ConfigError(
                f"Accelerate's {type(owner).__name__} would split the samples of each rank among all {num_ranks}"
                " ranks again, and most samples would be lost: use penstock's StreamingDataLoader, which"
                " `prepare` does not change"
            )
        frame = frame.f_back
