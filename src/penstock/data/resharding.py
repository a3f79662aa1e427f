"""A dataset that already gives each rank its own samples must not be divided once more by somebody else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from types import FrameType

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
