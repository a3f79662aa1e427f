"""What a torch loader wants of the dataset that it iterates, though it tells it nothing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from penstock.data.seat import worker_of
from penstock.user_warnings import warn_user

if TYPE_CHECKING:
    from types import FrameType

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
    """Say how many samples the torch loader that asks for one right now puts into a batch; None if there is none.

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
