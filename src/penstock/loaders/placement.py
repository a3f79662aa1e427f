"""Where batches go: they stay NumPy arrays, or become torch tensors or arrays of JAX."""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np

from penstock.errors import ConfigError
from penstock.extras import require
from penstock.user_warnings import warn_user


class Placement(Protocol):
    """Puts batches where they are needed; called in the threads that make batches, ahead of the training loop."""

    rank: tuple[int, int] | None  # of this process, and how many there are, if the library knows

    def put(self, batch: Any) -> Any:
        """Return a batch whose arrays are in their place."""


def find_placement(output: str, sharding: Any, *, pin_memory: bool) -> Placement | None:
    """Return what places batches, or None if they stay NumPy arrays. Only here are torch and JAX loaded."""
    if sharding is not None and output != "jax":
        raise ConfigError(f"sharding_map= only works with output='jax', not with output={output!r}")
    if pin_memory and output != "torch":
        raise ConfigError("pin_memory=True only works with output='torch'")
    if output == "numpy":
        return None
    if output == "torch":
        return cast("Placement", TorchPlacement(pins=pin_memory))
    from penstock.loaders import jax_placement

    return cast("Placement", jax_placement.make(sharding, pin_memory=pin_memory))


class TorchPlacement:
    """Makes tensors of arrays; what is no array of numbers stays what it is.

    As with torch's own loader, a machine without an accelerator pins nothing, and a warning says so.
    """

    rank = None  # found as for any dataset

    def __init__(self, *, pins: bool) -> None:
        self._torch = torch = require("torch", extra="torch", purpose="output='torch'")
        accelerator = getattr(torch, "accelerator", None)  # since 2.6
        self._pins = pins and bool((accelerator or torch.cuda).is_available())
        if pins and not self._pins:
            warn_user("pin_memory=True has no effect: torch finds no accelerator to copy batches to")

    def put(self, batch: Any) -> Any:
        """Return the batch with tensors that share the memory of its arrays, or pinned copies of them."""
        if isinstance(batch, dict):
            return {name: self.put(value) for name, value in batch.items()}
        if not isinstance(batch, np.ndarray) or batch.dtype.kind not in "iufbc":
            return batch
        tensor = self._torch.from_numpy(batch)
        return tensor.pin_memory() if self._pins else tensor
