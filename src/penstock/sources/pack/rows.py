"""Rows of tokens made of pieces of documents: whole blocks of rows at once, by NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from penstock.sources.pack.placement import Placement
    from penstock.types import Int64Array, Sample

IGNORED = -100  # what loss functions leave out
PADDING_SEGMENT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """What a packed row consists of."""

    seq_length: int
    pad_token_id: int
    input_field: str = "input_ids"
    pad_values: Mapping[str, Any]  # of further columns with a value for each token
    has_segment_ids: bool = True
    has_cu_seqlens: bool = False


def make_rows(
    columns: Mapping[str, npt.NDArray[Any]], placement: Placement, begin: int, end: int, options: RowOptions
) -> list[Sample]:
    """Make the rows `[begin, end)` of all that a placement describes; columns hold the documents end to end."""
    low, high = np.searchsorted(placement.rows, [begin, end])
    rows, lengths = placement.rows[low:high] - begin, placement.lengths[low:high]
    firsts = np.cumsum(lengths) - lengths  # of each piece among the tokens of these rows
    filled = np.bincount(rows, lengths, end - begin).astype(np.int64)
    row_starts = np.cumsum(filled) - filled
    offsets = firsts - row_starts[rows]  # of each piece in its row
    tokens = np.arange(int(lengths.sum()), dtype=np.int64)
    source = np.repeat(placement.starts[low:high] - firsts, lengths) + tokens
    is_full = len(tokens) == (end - begin) * options.seq_length
    places = None if is_full else np.repeat(rows * options.seq_length + offsets - firsts, lengths) + tokens

    def lay(values: npt.NDArray[Any], padding: Any) -> npt.NDArray[Any]:
        if places is None:
            return values.reshape(end - begin, options.seq_length)
        laid = np.full((end - begin) * options.seq_length, padding, values.dtype)
        laid[places] = values
        return laid.reshape(end - begin, options.seq_length)

    made = {options.input_field: lay(columns[options.input_field][source], options.pad_token_id)}
    if options.has_segment_ids:
        first_of_row = np.searchsorted(rows, np.arange(end - begin))
        segments = np.arange(len(rows)) - first_of_row[rows]
        made["segment_ids"] = lay(np.repeat(segments.astype(np.int32), lengths), PADDING_SEGMENT)
    positions = (tokens - np.repeat(firsts, lengths)).astype(np.int32)
    made["position_ids"] = lay(positions, 0)
    made["attention_mask"] = (np.arange(options.seq_length) < filled[:, None]).astype(np.int32)
    given = columns["labels"] if "labels" in columns else columns[options.input_field]
    labels = given[source].astype(np.int64)
    labels[firsts] = IGNORED  # what comes before a first token is another document
    made["labels"] = lay(labels, IGNORED)
    for name, padding in options.pad_values.items():
        if name != "labels":
            made[name] = lay(columns[name][source], padding)
    samples = [{name: values[row] for name, values in made.items()} for row in range(end - begin)]
    if options.has_cu_seqlens:
        _add_cu_seqlens(samples, rows, offsets, filled, options.seq_length)
    return samples


def _add_cu_seqlens(
    samples: list[Sample], rows: Int64Array, offsets: Int64Array, filled: Int64Array, seq_length: int
) -> None:
    """Add where segments begin and end in each row; padding is a segment of its own, so that all tokens are in one."""
    for row, sample in enumerate(samples):
        low, high = np.searchsorted(rows, [row, row + 1])
        ends = [int(filled[row]), seq_length] if filled[row] < seq_length else [seq_length]
        sample["cu_seqlens"] = np.array([*offsets[low:high], *ends], np.int32)


def join_cu_seqlens(rows: list[npt.NDArray[np.int32]]) -> tuple[npt.NDArray[np.int32], int]:
    """Join the `cu_seqlens` of a batch's rows, laid end to end, for kernels that take a flat batch.

    Gives the joined array and the length of the longest segment.
    """
    starts = np.concatenate([[0], np.cumsum([row[-1] for row in rows])])
    parts = [row[:-1] + start for row, start in zip(rows, starts, strict=False)]
    joined = np.concatenate([*parts, starts[-1:]]).astype(np.int32)
    return joined, int(np.diff(joined).max(initial=0))
