"""Samples → a batch of NumPy arrays, by field; what does not fit in an array stays a list, untouched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.blocks.block import columns_of
from penstock.errors import ConfigError
from penstock.units import check_whole, checks_making

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.blocks.block import Block, FieldValues
    from penstock.types import Sample

_NUMBERS = (int, float, np.number, np.bool_)


def collate_batch(examples: Sequence[Sample]) -> dict[str, Any]:
    """Make a batch of samples: for each field an array of their values.

    Numbers, and arrays or lists of numbers that all have one shape, are stacked. Text, bytes, and lists of several
    lengths stay lists. Dicts become dicts of batches. A sample that lacks a field that others have is an error.
    """
    return _collate_columns(columns_of(examples))


def takes_rows(collate: Callable[[list[Sample]], Any]) -> Callable[[Block], Any]:
    """Return a function that collates rows in any form; one of a user gets samples."""
    if collate is collate_batch:
        return collate_rows
    if type(collate) is PadCollator:
        return collate.collate_rows
    return lambda rows: collate(rows.samples())


def collate_rows(rows: Block) -> dict[str, Any]:
    """Make the batch that `collate_batch` makes of the samples of these rows."""
    return _collate_columns(rows.columns())


def _collate_columns(columns: Mapping[str, FieldValues]) -> dict[str, Any]:
    return {
        name: values if isinstance(values, np.ndarray) else _collate_values(values) for name, values in columns.items()
    }


@checks_making
class PadCollator:
    """Makes batches in which lists of numbers are padded to one length: that of the longest, or a fixed one.

    Args:
        pad_values: What each field is padded with; other fields are padded with 0, and `labels` with -100.
        max_length: A fixed length, instead of that of the longest; longer lists are an error.
        pad_to_multiple_of: Round the length up to a multiple of this.
        mask_field: A field to add with 1 for each value of the first padded field, and 0 for padding.
    """

    def __init__(
        self,
        pad_values: Mapping[str, Any] | None = None,
        *,
        max_length: int | None = None,
        pad_to_multiple_of: int = 1,
        mask_field: str | None = None,
    ) -> None:
        check_whole("max_length", max_length, 1)
        check_whole("pad_to_multiple_of", pad_to_multiple_of, 1)
        self._pad_values = {"labels": -100, **(pad_values or {})}
        self._max_length, self._multiple, self._mask_field = max_length, pad_to_multiple_of, mask_field

    def __call__(self, examples: Sequence[Sample]) -> dict[str, Any]:
        """Make a batch."""
        return self._collate(columns_of(examples))

    def collate_rows(self, rows: Block) -> dict[str, Any]:
        """Make a batch of rows in any form."""
        return self._collate(rows.columns())

    def _collate(self, columns: Mapping[str, FieldValues]) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        mask = None
        for name, values in columns.items():
            if not all(map(_is_list_of_numbers, values)):
                batch[name] = _collate_columns({name: values})[name]
                continue
            batch[name] = self._pad(name, values)
            if mask is None:
                lengths = np.array(list(map(len, values)))
                mask = (np.arange(batch[name].shape[1]) < lengths[:, None]).astype(np.int32)
        if self._mask_field is not None and mask is not None:
            batch[self._mask_field] = mask
        return batch

    def _pad(self, name: str, values: FieldValues) -> Any:
        longest = max(map(len, values))
        if self._max_length is not None and longest > self._max_length:
            raise ConfigError(f"{name!r} has {longest} values, more than max_length={self._max_length}")
        length = -(-(self._max_length or longest) // self._multiple) * self._multiple
        arrays = [np.asarray(value) for value in values]
        kind = np.result_type(*(array for array in arrays if array.size)) if longest else np.dtype(np.int64)
        made = np.full((len(values), length), self._pad_values.get(name, 0), kind)
        for row, array in zip(made, arrays, strict=True):
            row[: len(array)] = array
        return made


def _collate_values(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, np.ndarray) and first.dtype.kind in "iufbc":
        if (
            set(map(type, values)) != {np.ndarray}
            or len({(value.shape, value.dtype.hasobject) for value in values}) > 1
        ):
            return values
        if first.ndim == 1:  # quicker than `stack`
            return np.concatenate(values).reshape(len(values), len(first))
        return np.stack(values)
    if isinstance(first, _NUMBERS):
        return np.array(values) if all(isinstance(value, _NUMBERS) for value in values) else values
    if isinstance(first, Mapping) and all(isinstance(value, Mapping) for value in values):
        return collate_batch(values)
    if all(_is_list_of_numbers(value) and len(value) == len(first) for value in values):
        return np.array(values)
    return values


def _is_list_of_numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iufb"
    return isinstance(value, list | tuple) and all(isinstance(each, _NUMBERS) for each in value)
