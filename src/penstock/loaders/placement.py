"""Where batches go: they stay NumPy arrays, or become torch tensors or arrays of JAX."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError
from penstock.extras import require
from penstock.user_warnings import warn_user

if TYPE_CHECKING:
    import numpy.typing as npt


class BatchPlacement(ABC):
    """Puts batches where they are needed; called in the threads that make batches, ahead of the training loop.

    What is no array of numbers stays what it is.
    """

    rank: tuple[int, int] | None = None  # of this process, and how many there are, if the library knows

    def put(self, batch: Any) -> Any:
        """Return a batch whose arrays are in their place."""
        if isinstance(batch, dict):
            return {name: self._put(value, name) for name, value in batch.items()}
        return self._put(batch, "")

    def _put(self, value: Any, name: str) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind in "iufbc":
            return self.place(value, name)
        return value

    @abstractmethod
    def place(self, array: npt.NDArray[Any], name: str) -> Any:
        """Return the array of a field in its place."""


def find_placement(output: str, sharding: Any, *, pin_memory: bool) -> BatchPlacement | None:
    """Return what places batches, or None if they stay NumPy arrays. Only here are torch and JAX loaded."""
    if sharding is not None and output != "jax":
        raise ConfigError(f"sharding_map= only works with output='jax', not with output={output!r}")
    if pin_memory and output != "torch":
        raise ConfigError("pin_memory=True only works with output='torch'")
    if output == "numpy":
        return None
    return TorchPlacement(pins=pin_memory) if output == "torch" else JaxPlacement(sharding)


class TorchPlacement(BatchPlacement):
    """Makes tensors that share the memory of arrays, or pinned copies of them.

    As with torch's own loader, a machine without an accelerator pins nothing, and a warning says so.
    """

    def __init__(self, *, pins: bool) -> None:
        self._torch = torch = require("torch", extra="torch", purpose="output='torch'")
        accelerator = getattr(torch, "accelerator", None)  # since 2.6
        self._pins = pins and bool((accelerator or torch.cuda).is_available())
        if pins and not self._pins:
            warn_user("pin_memory=True has no effect: torch finds no accelerator to copy batches to")

    def _put(self, value: Any, name: str) -> Any:
        return self.put(value) if isinstance(value, dict) else super()._put(value, name)

    def place(self, array: npt.NDArray[Any], name: str) -> Any:  # noqa: ARG002
        """Return the tensor."""
        tensor = self._torch.from_numpy(array)
        return tensor.pin_memory() if self._pins else tensor


class JaxPlacement(BatchPlacement):
    """Makes global arrays, of which each process gives its part, by a sharding for all fields or one for each.

    Fields without a sharding go to the default device.
    """

    def __init__(self, sharding: Any) -> None:
        self._jax = jax = require("jax", extra="jax", purpose="output='jax'")
        self._sharding = sharding
        self.rank = (int(jax.process_index()), int(jax.process_count()))

    def place(self, array: npt.NDArray[Any], name: str) -> Any:
        """Return the array of JAX."""
        sharding = self._sharding.get(name) if isinstance(self._sharding, Mapping) else self._sharding
        if sharding is None or not name:
            return self._jax.device_put(array)
        return self._jax.make_array_from_process_local_data(sharding, array)
