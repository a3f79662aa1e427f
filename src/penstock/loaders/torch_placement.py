"""Batches as torch tensors, in pinned memory if asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.extras import require
from penstock.user_warnings import warn_user

torch = require("torch", extra="torch", purpose="output='torch'")


class TorchPlacement:
    """Makes tensors of arrays; what is no array of numbers stays what it is."""

    rank = None  # found as for any dataset

    def __init__(self, *, pins: bool) -> None:
        self._pins = pins

    def put(self, batch: Any) -> Any:
        """Return the batch with tensors that share the memory of its arrays, or pinned copies of them."""
        if isinstance(batch, dict):
            return {name: self.put(value) for name, value in batch.items()}
        if not isinstance(batch, np.ndarray) or batch.dtype.kind not in "iufbc":
            return batch
        tensor = torch.from_numpy(batch)
        return tensor.pin_memory() if self._pins else tensor


def make(_: Any, *, pin_memory: bool) -> TorchPlacement:
    """Make the placement. As with torch's own loader, a machine without an accelerator pins nothing, and is told so."""
    can_pin = pin_memory and _has_accelerator()
    if pin_memory and not can_pin:
        warn_user("pin_memory=True has no effect: torch finds no accelerator to copy batches to")
    return TorchPlacement(pins=can_pin)


def _has_accelerator() -> bool:
    accelerator = getattr(torch, "accelerator", None)  # since 2.6
    return bool(torch.cuda.is_available() if accelerator is None else accelerator.is_available())
