"""Packers by hand: documents go in one by one, and whole rows come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.sources.pack.rows import (
    RowOptions,
    best_fit,
    cut_into_rows,
    join_documents,
    make_rows,
    pool,
    prepare_document,
)
from penstock.units import check_whole

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.sources.pack.rows import Document, Placement
    from penstock.types import Int64Array


@dataclass(frozen=True, slots=True)
class PackedSequence:
    """One row of tokens, and which documents its segments are of."""

    input_ids: npt.NDArray[np.int32]
    segment_ids: npt.NDArray[np.int32]
    position_ids: npt.NDArray[np.int32]
    attention_mask: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int64]
    source_ids: tuple[Any, ...]

    @property
    def num_segments(self) -> int:
        """Count the documents, or parts of documents, in the row."""
        return len(self.source_ids)


class Packer(ABC):
    """Packs documents into rows. Every token that is added comes out in exactly one row.

    Args:
        seq_length: Tokens per row.
        eos_token_id: The token that ends a document, added unless it is there already; None adds nothing.
        pad_token_id: The token in the rest of a row that is not full.
    """

    def __init__(self, seq_length: int, eos_token_id: int | None, pad_token_id: int = 0) -> None:
        check_whole("seq_length", seq_length, 2)
        self._eos_token_id = eos_token_id
        self._options = RowOptions(seq_length=seq_length, pad_token_id=pad_token_id, pad_values={})
        self._waiting: list[Document] = []
        self._source_ids: list[Any] = []
        self._num_tokens = 0

    def add(self, tokens: Any, source_id: Any = None) -> list[PackedSequence]:
        """Add a document; gives the rows that are ready now, none or several."""
        document = prepare_document(
            {"input_ids": tokens},
            input_field="input_ids",
            more_fields=(),
            eos_token_id=self._eos_token_id,
            seq_length=self._options.seq_length,
            long_documents="split",
        )
        if document.is_dropped:  # it is empty
            return []
        self._waiting.append(document)
        self._source_ids.append(source_id)
        self._num_tokens += document.length
        return self._pack() if self._is_ready() else []

    def flush(self) -> list[PackedSequence]:
        """Return all rows that are left; the last may not be full."""
        return self._pack() if self._waiting else []

    def _pack(self) -> list[PackedSequence]:
        documents, source_ids = self._waiting, self._source_ids
        bounds = np.cumsum([0, *(document.length for document in documents)])
        columns = join_documents(documents, "input_ids", self._eos_token_id)
        placement = self._place(bounds)
        self._waiting, self._source_ids, self._num_tokens = [], [], 0
        rows = make_rows(columns, placement, 0, placement.num_rows, self._options)
        of_pieces = np.searchsorted(bounds[1:], placement.starts, side="right").tolist()
        ends = np.searchsorted(placement.rows, np.arange(placement.num_rows + 1)).tolist()
        return [
            PackedSequence(**row, source_ids=tuple(source_ids[place] for place in of_pieces[ends[at] : ends[at + 1]]))
            for at, row in enumerate(rows)
        ]

    @abstractmethod
    def _is_ready(self) -> bool:
        """Return whether to pack what is waiting."""

    @abstractmethod
    def _place(self, bounds: Int64Array) -> Placement:
        """Return where documents go."""


class GreedyPacker(Packer):
    """Lays documents end to end, and gives a row whenever one is full."""

    def _is_ready(self) -> bool:
        return self._num_tokens >= self._options.seq_length

    def _pack(self) -> list[PackedSequence]:
        left = self._num_tokens % self._options.seq_length if self._is_ready() else 0
        last, source_id = self._waiting[-1], self._source_ids[-1]
        if not left:
            return super()._pack()
        # What goes beyond the last full row is of the last document: it waits for more.
        eos = [] if last.has_own_end else [self._eos_token_id or 0]
        tokens = np.concatenate([last.columns["input_ids"], np.array(eos, np.int32)])
        head, rest = tokens[: last.length - left], tokens[last.length - left :]
        self._waiting[-1] = type(last)({"input_ids": head}, len(head), True)
        rows = super()._pack()
        self._waiting, self._source_ids = [type(last)({"input_ids": rest}, len(rest), True)], [source_id]
        self._num_tokens = left
        return rows

    def _place(self, bounds: Int64Array) -> Placement:
        return cut_into_rows(bounds, self._options.seq_length)


class PoolPacker(Packer):
    """Puts documents whole into the tightest of a few open rows, and cuts only what fits in none of them.

    Rows come out after each `buffer_rows` rows of tokens.
    """

    def __init__(
        self,
        seq_length: int,
        eos_token_id: int | None,
        pad_token_id: int = 0,
        num_packers: int = 4,
        *,
        buffer_rows: int = 100,
    ) -> None:
        check_whole("num_packers", num_packers, 1)
        check_whole("buffer_rows", buffer_rows, 1)
        super().__init__(seq_length, eos_token_id, pad_token_id)
        self._num_packers, self._buffer_rows = num_packers, buffer_rows

    def _is_ready(self) -> bool:
        return self._num_tokens >= self._buffer_rows * self._options.seq_length

    def _place(self, bounds: Int64Array) -> Placement:
        return pool(bounds, self._options.seq_length, self._num_packers)


class FirstFitPacker(Packer):
    """Never cuts a document that fits in a row: the longest first, each into the row with the least space.

    Rows come out after each `buffer_size` documents.
    """

    def __init__(
        self, seq_length: int, eos_token_id: int | None, pad_token_id: int = 0, buffer_size: int = 1000
    ) -> None:
        check_whole("buffer_size", buffer_size, 1)
        super().__init__(seq_length, eos_token_id, pad_token_id)
        self._buffer_size = buffer_size

    def _is_ready(self) -> bool:
        return len(self._waiting) >= self._buffer_size

    def _place(self, bounds: Int64Array) -> Placement:
        return best_fit(bounds, self._options.seq_length)
