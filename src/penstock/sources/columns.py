"""Rows on their way through a source: a list of samples, or columns of which nobody has made samples yet.

Whoever only passes rows on (shards in turn, ranks, the shuffle buffer, batches) cuts, joins and picks them in either
form by the functions here, so that positions and random numbers are computed in one place. Both forms stand for the
same samples: which of them rows have never shows in what a user gets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from typing_extensions import Self

    from penstock.types import Int64Array, Sample

    # The values of a field: an array where `np.array` would make one of them, as they are in samples; else a list.
    FieldValues = npt.NDArray[Any] | list[Any]


class ColumnarRows(ABC):
    """Rows as columns. They do not change, so parts of them may share their memory."""

    @abstractmethod
    def __len__(self) -> int:
        """Count the rows."""

    @abstractmethod
    def cut(self, begin: int, end: int) -> Self:
        """Give the rows from one on, up to another."""

    @abstractmethod
    def pick(self, places: Int64Array) -> Self:
        """Give copies of the rows at these places, in this order; the others may be let go of then."""

    @abstractmethod
    def join(self, following: Sequence[ColumnarRows]) -> Self | None:
        """Give these rows and the following ones together, or None if their columns are not the same."""

    @abstractmethod
    def samples(self) -> list[Sample]:
        """Make samples."""

    @abstractmethod
    def columns(self) -> Mapping[str, FieldValues]:
        """Give the values of each field, in arrays that may be changed."""


Rows = list[dict[str, Any]] | ColumnarRows


def to_samples(rows: Rows) -> list[Sample]:
    """Make samples of rows, unless they are."""
    return rows if isinstance(rows, list) else rows.samples()


def cut_rows(rows: Rows, begin: int, end: int) -> Rows:
    """Give the rows from one on, up to another or to the end."""
    return rows[begin:end] if isinstance(rows, list) else rows.cut(begin, min(end, len(rows)))


def pick_rows(rows: Rows, places: Int64Array) -> Rows:
    """Give the rows at these places, in this order."""
    return [rows[place] for place in places.tolist()] if isinstance(rows, list) else rows.pick(places)


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Give the rows of all parts, one after the other: as columns if all of them are, and the same ones."""
    if len(parts) == 1:
        return parts[0]
    columnar = [part for part in parts if isinstance(part, ColumnarRows)]
    if columnar and len(columnar) == len(parts):
        joined = columnar[0].join(columnar[1:])
        if joined is not None:
            return joined
    return [sample for part in parts for sample in to_samples(part)]
