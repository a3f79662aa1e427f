"""Samples → Arrow's record batches that give back the same values; what would come back changed is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import BadSampleError
from penstock.formats.columnar.arrow_types import pyarrow

if TYPE_CHECKING:
    from penstock.types import Sample


def to_batch(samples: list[Sample], names: Sequence[str], first_row: int) -> Any:
    """Make a record batch of samples that all have the same fields."""
    for number, sample in enumerate(samples):
        if sample.keys() != set(names):
            odd = sorted(sample.keys() ^ set(names))
            raise BadSampleError(
                f"sample {first_row + number} has the fields {', '.join(sample)}, but the first one has"
                f" {', '.join(names)}: keep those that all have with select_fields, or fill in {odd[0]!r} with a"
                " transform",
                row=first_row + number,
            )
    columns = [_to_array([sample[name] for sample in samples], name, first_row) for name in names]
    return pyarrow().RecordBatch.from_arrays(columns, names=list(names))


def _to_array(values: list[Any], name: str, first_row: int) -> Any:
    """Make an Arrow array of the values of a field, and make sure that it says the same."""
    pa = pyarrow()
    is_array = {isinstance(value, np.ndarray) and value.ndim > 0 and not value.dtype.hasobject for value in values}
    try:
        if is_array == {True}:
            return _arrays_to_arrow(values)
        array = pa.array(values)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        kinds = ", ".join(sorted({type(value).__name__ for value in values}))
        raise BadSampleError(
            f"field {name!r} of the {len(values)} samples from {first_row} on holds {kinds}, which cannot be written as"
            f" one column: {error}. Change it with a transform, or write the samples with save_dataset(...,"
            " format='mds')",
            row=first_row,
        ) from error
    for number, (stored, value) in enumerate(zip(array.to_pylist(), values, strict=True)):
        if not _is_same(stored, value):
            raise BadSampleError(
                f"field {name!r} of sample {first_row + number} would come back as {stored!r:.80} instead of"
                f" {value!r:.80}, because other samples have other keys or types there: make them alike with a"
                " transform",
                row=first_row + number,
            )
    return array


def _arrays_to_arrow(values: list[Any]) -> Any:
    """Make lists of arrays of one type; those with several dimensions must differ in the first one alone."""
    pa = pyarrow()
    kinds = {(value.dtype, value.shape[1:]) for value in values}
    if len(kinds) > 1:
        shown = " and ".join(sorted(f"{dtype} (…, {', '.join(map(str, shape))})" for dtype, shape in kinds)[:2])
        raise ValueError(f"arrays differ: {shown}")
    [(_, shape)] = kinds
    offsets = np.concatenate([[0], np.cumsum([len(value) for value in values])])
    items = pa.array(np.concatenate([value.reshape(-1) for value in values]))
    for size in reversed(shape):
        items = pa.FixedSizeListArray.from_arrays(items, size)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items)


def _is_same(stored: Any, value: Any) -> bool:
    """Return whether a value is what it was; lists, tuples and arrays count as equal, and so do numbers of any type."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, str | bytes):
        return bool(stored == value)
    if isinstance(value, Mapping):
        return (
            isinstance(stored, Mapping)
            and stored.keys() == value.keys()
            and all(_is_same(stored[key], each) for key, each in value.items())
        )
    if isinstance(value, Sequence):
        is_list = isinstance(stored, Sequence) and len(stored) == len(value)
        return is_list and all(map(_is_same, stored, value))
    return bool(stored == value or (value != value and stored != stored))  # only NaN differs from itself
