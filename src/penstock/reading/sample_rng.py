"""A generator for each sample, by its place in the run: the same draws after a resume, on any world.

The key of a sample comes of the seed, the epoch and the position in the epoch, so that it does not depend on ranks,
workers or batches, and a sample that comes twice in an epoch gets other draws each time. Of samples that are asked for
by number, it comes of the seed and the number.
"""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.order.keys import draw, draw_each, hash_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from penstock.order.keys import UInt64Array
    from penstock.types import Int64Array

_EXACT = 2.0**-53  # of a 64-bit draw, its upper 53 bits are a number from 0 to 1


def keys_of_positions(seed: int, epoch: int, positions: Int64Array) -> UInt64Array:
    """Return the keys of the samples at some positions of an epoch."""
    return draw(hash_key("sample rng", seed, epoch), positions.astype(np.uint64))


def keys_of_ids(seed: int, ids: Sequence[int] | Int64Array) -> UInt64Array:
    """Return the keys of samples that are asked for by number."""
    return draw(hash_key("sample rng by id", seed), np.array(ids, np.uint64))


def takes_rng(function: Callable[..., Any]) -> bool:
    """Return whether a function has an argument `rng` that is not bound yet."""
    if isinstance(function, partial) and "rng" in function.keywords:
        return False
    try:
        return "rng" in signature(function).parameters
    except (TypeError, ValueError):  # of some builtins
        return False


class SampleRng(np.random.Generator):
    """NumPy's generator, begun anew for each sample: do not keep it for the next one.

    Attributes:
        key: A number that seeds anything else, such as `torch.Generator().manual_seed(rng.key)`; below 2⁶³.
    """

    key: int

    def __init__(self) -> None:
        super().__init__(np.random.Philox(0))
        self._begun: Any = self.bit_generator.state
        self._key = self._begun["state"]["key"]

    def begin(self, key: int) -> SampleRng:
        """Begin with the draws of a sample."""
        self.key = key >> 1
        self._key[0] = key
        self.bit_generator.state = self._begun
        return self


class RowDraws:
    """Draws for each row of a batch at once: an array of as many rows. What they are never changes.

    Each call gives other numbers. A row gets the same ones in whatever batch it comes.

    Attributes:
        keys: The key of each row.
    """

    def __init__(self, keys: UInt64Array) -> None:
        self.keys, self._num_drawn = keys, 0

    def random(self, *shape: int) -> npt.NDArray[np.float64]:
        """Draw numbers from 0 to below 1: one for each row, or an array of this shape."""
        size = int(np.prod(shape, dtype=np.int64))
        drawn = draw_each(self.keys, range(self._num_drawn, self._num_drawn + size))
        self._num_drawn += size
        numbers: npt.NDArray[np.float64] = (drawn >> np.uint64(11)).astype(np.float64) * _EXACT
        return numbers.reshape(len(self.keys), *shape)

    def integers(self, low: int, high: int, *shape: int) -> Int64Array:
        """Draw whole numbers from `low` to below `high`."""
        return low + (self.random(*shape) * (high - low)).astype(np.int64)

    def normal(self, *shape: int) -> npt.NDArray[np.float64]:
        """Draw numbers of the normal distribution around 0 with deviation 1."""
        distance, angle = self.random(*shape), self.random(*shape)
        drawn: npt.NDArray[np.float64] = np.sqrt(-2 * np.log1p(-distance)) * np.cos(2 * np.pi * angle)
        return drawn


# --- Generators of the process, which libraries draw from -----------------------------------------------------------


def seed_globals(key: int) -> None:
    """Seed the generators that libraries draw from without being given one: of Python, NumPy and torch."""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(key >> 1)  # torch.manual_seed seeds every device, which takes long


@contextmanager
def kept_globals() -> Iterator[None]:
    """Put the generators of the process back as they were."""
    ours, numpys = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    torchs = None if torch is None else torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
        if torch is not None:
            torch.default_generator.set_state(torchs)
