"""What `StreamingDataset` derives from: torch's own class, where there is torch, so that loaders know what it is."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Generic, TypeVar

__all__ = ["IterableDataset"]

T = TypeVar("T")

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset
else:
    if find_spec("torch") is None:

        class IterableDataset(Generic[T]):
            """Stands in where there is no torch."""

    else:
        from torch.utils.data import IterableDataset
