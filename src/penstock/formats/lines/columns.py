"""Samples whose keys may differ → columns: numbers as arrays where all of them allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from penstock.types import Columns, Sample

_KINDS: dict[frozenset[type], type] = {
    frozenset({int}): np.int64,
    frozenset({float}): np.float64,
    frozenset({bool}): np.bool_,
}


def to_columns(samples: Sequence[Sample], names: Iterable[str]) -> Columns:
    """Return columns of these names, with None where a sample lacks one."""
    return {name: to_column([sample.get(name) for sample in samples]) for name in names}


def to_column(values: list[Any]) -> npt.NDArray[Any] | list[Any]:
    """Return an array if all values are numbers of one kind that 64 bits hold, else the list."""
    kind = _KINDS.get(frozenset(map(type, values)))
    if kind is None:
        return values
    try:
        return np.array(values, kind)
    except OverflowError:  # wider than 64 bits
        return values
