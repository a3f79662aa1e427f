"""Documents into rows of one length: where they go, from their lengths alone, and the rows that are made of them."""

from __future__ import annotations

from array import array
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.errors import DataError, MissingColumnError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt

    from penstock.types import Int64Array, Sample


LongDocuments = Literal["split", "truncate", "drop"]

_LARGEST = np.iinfo(np.int32)


@dataclass(slots=True)
class Document:
    """One document, ready to be packed; a dropped one has a length of 0."""

    columns: dict[str, npt.NDArray[Any]]
    length: int  # with the token that ends it
    has_own_end: bool
    num_dropped: int = 0  # tokens that are left out

    @property
    def is_dropped(self) -> bool:
        """Whether nothing of it is left."""
        return self.length == 0


def prepare_document(
    sample: Sample,
    *,
    input_field: str,
    more_fields: Collection[str],
    eos_token_id: int | None,
    seq_length: int,
    long_documents: LongDocuments,
) -> Document:
    """Make a document of a sample; one that is empty, or too long where such are dropped, is made without tokens."""
    tokens = _as_array(sample, input_field)
    if tokens.dtype.kind == "f":
        if len(tokens):
            raise DataError(f"{input_field!r} of a document must be whole numbers, got {sample[input_field]!r:.80}")
        tokens = tokens.astype(np.int32)  # an empty list has no type
    columns, num_tokens = {input_field: tokens}, len(tokens)
    for name in (*more_fields, "labels") if "labels" in sample else more_fields:
        columns[name] = _as_array(sample, name)
        if len(columns[name]) != num_tokens:
            raise DataError(f"a document has {num_tokens} tokens but {len(columns[name])} values of {name!r}")
    ends_itself = eos_token_id is None or (num_tokens > 0 and tokens.item(-1) == eos_token_id)
    length = num_tokens if ends_itself else num_tokens + 1
    if not num_tokens or (length > seq_length and long_documents == "drop"):
        nothing = {name: values[:0] for name, values in columns.items()}
        return Document(nothing, 0, True, num_tokens)
    if length > seq_length and long_documents == "truncate":
        kept = {name: values[:seq_length] for name, values in columns.items()}
        return Document(kept, seq_length, True, num_tokens - seq_length)
    return Document(columns, length, ends_itself)


def join_documents(
    documents: Sequence[Document], input_field: str, eos_token_id: int | None
) -> dict[str, npt.NDArray[Any]]:
    """Lay the columns of documents end to end, each document with the token that ends it."""
    eos = np.array([eos_token_id or 0], np.int32)
    joined = {}
    for name in documents[0].columns:
        parts = []
        for document in documents:
            try:
                values = document.columns[name]
            except KeyError:
                raise MissingColumnError(f"some documents have {name!r} and some do not") from None
            parts.append(values)
            if not document.has_own_end:
                parts.append(eos if name in (input_field, "labels") else values[-1:])
        joined[name] = np.concatenate(parts)
    return joined


def _as_array(sample: Sample, name: str) -> npt.NDArray[Any]:
    try:
        given = sample[name]
    except KeyError:
        raise MissingColumnError(f"a document has no {name!r}: it has {', '.join(sample)}") from None
    if type(given) is np.ndarray and given.dtype == np.int32 and given.ndim == 1:
        return given
    if type(given) is list:
        with suppress(TypeError, OverflowError):  # takes integers of 32 bits and nothing else, and that quickly
            return np.frombuffer(array("i", given), np.int32)
    try:
        values = given if isinstance(given, np.ndarray) else np.array(given)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name!r} of a document must be a list of numbers, got {given!r:.80}") from error
    if values.ndim != 1 or values.dtype.kind not in "iubf":
        raise DataError(f"{name!r} of a document must be a list of numbers, got {given!r:.80}")
    if values.dtype.kind == "f":
        return values
    is_wide = values.dtype.itemsize >= 4
    if is_wide and len(values) and not _LARGEST.min <= int(values.min()) <= int(values.max()) <= _LARGEST.max:
        raise DataError(f"{name!r} of a document has numbers that do not fit in 32 bits")
    return values.astype(np.int32)


@dataclass(frozen=True, slots=True)
class Placement:
    """Placement in the order of rows, and within a row in their order from its beginning, without gaps."""

    rows: Int64Array
    starts: Int64Array  # of its tokens, where documents lie end to end
    lengths: Int64Array
    num_rows: int

    def filled(self) -> Int64Array:
        """Count the tokens of each row."""
        return np.bincount(self.rows, self.lengths, self.num_rows).astype(np.int64)

    def offsets(self) -> Int64Array:
        """Return the place in its row where each piece begins."""
        ends = np.cumsum(self.lengths)
        row_starts = np.concatenate([[0], np.cumsum(self.filled())])
        offsets: Int64Array = ends - self.lengths - row_starts[self.rows]
        return offsets

    def reordered(self, rows: Int64Array) -> Placement:
        """Put the rows in another order: `rows[i]` comes to place i."""
        places = np.empty(self.num_rows, np.int64)
        places[rows] = np.arange(self.num_rows)
        return _sorted(places[self.rows], self.starts, self.lengths, self.num_rows)


def cut_into_rows(bounds: Int64Array, seq_length: int) -> Placement:
    """Cut the documents, as they lie end to end, every `seq_length` tokens: the last row may not be full."""
    total = int(bounds[-1])
    cuts = np.unique(np.concatenate([bounds, np.arange(0, total, seq_length)]))
    starts = cuts[:-1]
    return Placement(starts // seq_length, starts, np.diff(cuts), -(-total // seq_length))


def best_fit(bounds: Int64Array, seq_length: int, max_segments: int | None = None) -> Placement:
    """Put whole documents, the longest first, each into the row with the least space that suffices.

    Documents that are longer than a row are cut into rows of their own and a rest. Rows are in the order of their
    first document.
    """
    starts, lengths = _cut_long(bounds, seq_length)
    rows = np.empty(len(lengths), np.int64)
    num_rows = 0
    # Rows by the space that they have left, and which spaces there are, as bits of one number: the lowest bit from a
    # length on is the tightest row, found in a few machine words.
    by_space: list[list[int]] = [[] for _ in range(seq_length + 1)]
    spaces = 0
    segments: list[int] = []
    for document in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[document])
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            row = by_space[space].pop()
            if not by_space[space]:
                spaces ^= 1 << space
        else:
            row, space = num_rows, seq_length
            num_rows += 1
            segments.append(0)
        rows[document] = row
        segments[row] += 1
        space -= length
        if space and segments[row] != max_segments:
            by_space[space].append(row)
            spaces |= 1 << space
    first = np.full(num_rows, len(rows))
    np.minimum.at(first, rows, np.arange(len(rows)))
    places = np.empty(num_rows, np.int64)
    places[np.argsort(first)] = np.arange(num_rows)
    return _sorted(places[rows], starts, lengths, num_rows)


def pool(bounds: Int64Array, seq_length: int, num_open: int) -> Placement:
    """Put documents, in order, whole into the tightest of a few open rows; one that fits nowhere fills the fullest.

    What is in open rows at the end is put together, so that at most the last row is not full.
    """
    pieces: list[tuple[int, int, int]] = []  # row, start, length
    open_rows: list[list[tuple[int, int]]] = [[] for _ in range(num_open)]
    spaces = [seq_length] * num_open
    num_rows = 0

    def finish(number: int) -> None:
        nonlocal num_rows
        pieces.extend((num_rows, start, length) for start, length in open_rows[number])
        num_rows += 1
        open_rows[number], spaces[number] = [], seq_length

    for start, stop in pairwise(bounds.tolist()):
        length = stop - start
        fitting = [number for number in range(num_open) if spaces[number] >= length]
        number = min(fitting, key=spaces.__getitem__) if fitting else min(range(num_open), key=spaces.__getitem__)
        while length:
            part = min(length, spaces[number])
            open_rows[number].append((start, part))
            spaces[number] -= part
            start, length = start + part, length - part
            if not spaces[number]:
                finish(number)
    space = seq_length
    left = [piece for number in sorted(range(num_open), key=spaces.__getitem__) for piece in open_rows[number]]
    for start, length in left:
        while length:
            part = min(length, space)
            pieces.append((num_rows, start, part))
            start, length, space = start + part, length - part, space - part
            if not space:
                num_rows, space = num_rows + 1, seq_length
    table = np.array(pieces, np.int64).reshape(-1, 3)
    return _sorted(table[:, 0], table[:, 1], table[:, 2], num_rows + (space < seq_length))


def _cut_long(bounds: Int64Array, seq_length: int) -> tuple[Int64Array, Int64Array]:
    """Cut documents that are longer than a row, from their beginning; gives starts and lengths of all parts."""
    lengths = np.diff(bounds)
    counts = np.maximum(1, -(-lengths // seq_length))
    first_part = np.repeat(np.cumsum(counts) - counts, counts)
    within = (np.arange(len(first_part)) - first_part) * seq_length
    starts = np.repeat(bounds[:-1], counts) + within
    return starts, np.minimum(seq_length, np.repeat(lengths, counts) - within)


def _sorted(rows: Int64Array, starts: Int64Array, lengths: Int64Array, num_rows: int) -> Placement:
    order = np.argsort(rows, kind="stable")
    return Placement(rows[order], starts[order], lengths[order], num_rows)


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
