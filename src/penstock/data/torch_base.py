"""What `StreamingDataset` derives from: torch's own class, where there is torch, so that loaders know what it is."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:

    class IterableDataset:
        """What the type checker sees, with torch and without."""


else:
    if find_spec("torch") is None:

        class IterableDataset:
            """Stands in where there is no torch."""

    else:
        from torch.utils.data import IterableDataset  # noqa: F401
