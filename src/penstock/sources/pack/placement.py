"""Where documents go when they are packed into rows of one length: from their lengths alone, without their tokens.

Documents lie end to end. A piece is a run of their tokens, within one document, that stands together in one row. A
strategy turns the bounds of documents into pieces; each token is in exactly one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from penstock.types import Int64Array


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
