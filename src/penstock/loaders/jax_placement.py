"""Batches as arrays of JAX: each process gives its part, and together they are one global array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.extras import require

jax = require("jax", extra="jax", purpose="output='jax'")


class JaxPlacement:
    """Puts arrays on devices, by a sharding for all fields or one for each; others stay on the default device."""

    def __init__(self, sharding: Any) -> None:
        self._sharding = sharding
        self.rank = (int(jax.process_index()), int(jax.process_count()))

    def put(self, batch: Any) -> Any:
        """Return the batch with arrays of JAX; what is no array of numbers stays what it is."""
        if not isinstance(batch, dict):
            return self._put(batch, None)
        return {name: self._put(value, self._of(name)) for name, value in batch.items()}

    def _of(self, name: str) -> Any:
        return self._sharding.get(name) if isinstance(self._sharding, Mapping) else self._sharding

    def _put(self, value: Any, sharding: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iufbc":
            return value
        if sharding is None:
            return jax.device_put(value)
        return jax.make_array_from_process_local_data(sharding, value)


def make(sharding: Any, *, pin_memory: bool) -> JaxPlacement:  # noqa: ARG001
    """Make the placement."""
    return JaxPlacement(sharding)
