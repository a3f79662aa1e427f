"""A shard whose samples a function gives: the shortest way to a source of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from penstock.formats.base import Rows
    from penstock.types import Columns, Sample


class FunctionReader:
    """Gives `sample_of(row)` for each row of a shard."""

    def __init__(self, num_rows: int, sample_of: Callable[[int], Sample]) -> None:
        self._num_rows, self._sample_of = num_rows, sample_of

    def __len__(self) -> int:
        return self._num_rows

    def read(self, rows: Rows) -> list[Sample]:
        """Give the samples at these rows, in this order."""
        return [self._sample_of(int(row)) for row in rows]

    def read_columns(self, rows: Rows) -> Columns:
        """Give the same by column."""
        samples = self.read(rows)
        names = samples[0] if samples else ()
        return {name: _as_column([sample[name] for sample in samples]) for name in names}

    def rest(self) -> None:
        """Keep nothing: there is nothing to let go of."""

    def close(self) -> None:
        """Close nothing."""


def _as_column(values: list[Any]) -> npt.NDArray[Any] | list[Any]:
    """Make an array of numbers, or of arrays of one shape; anything else stays a list."""
    shapes = {np.shape(value) if isinstance(value, np.ndarray | np.generic | int | float) else None for value in values}
    return np.array(values) if len(shapes) == 1 and None not in shapes else values
