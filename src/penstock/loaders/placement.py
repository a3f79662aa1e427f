"""Where batches go: they stay NumPy arrays, or become torch tensors or arrays of JAX."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from penstock.errors import ConfigError

_HOMES = {"torch": "penstock.loaders.torch_placement", "jax": "penstock.loaders.jax_placement"}


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
    made: Placement = import_module(_HOMES[output]).make(sharding, pin_memory=pin_memory)
    return made
