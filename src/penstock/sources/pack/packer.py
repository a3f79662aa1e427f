"""Packs the documents of an iterator into rows, group by group."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.blocks.block import Block
from penstock.blocks.stage import BegunStage, close, resume, skip_rows
from penstock.errors import DataError
from penstock.order.keys import hash_key, permutation
from penstock.order.state_fields import COUNT, check_fields, refuse
from penstock.sources.pack.documents import Document, LongDocuments, join_documents, prepare_document
from penstock.sources.pack.placement import Placement, best_fit, cut_into_rows, pool
from penstock.sources.pack.rows import RowOptions, make_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from penstock.blocks.stage import Stage, State
    from penstock.types import Int64Array, Sample

PackStrategy = Literal["greedy", "pool", "first_fit"]

_ROWS_AT_ONCE = 64
_DOCUMENTS_AT_ONCE = 256
_MOST_SKIPPED = 1 << 16  # documents between where some were read together and a group; going there reads them


@dataclass(frozen=True, slots=True)
class PackStats:
    """Where all tokens so far have gone: `tokens + eos_added + padding` is what the rows hold."""

    rows: int = 0
    documents: int = 0
    tokens: int = 0  # of documents, in rows
    eos_added: int = 0
    padding: int = 0
    documents_cut: int = 0  # in several rows, or truncated
    documents_dropped: int = 0  # too long, or empty
    tokens_dropped: int = 0

    @property
    def filled(self) -> float:
        """The share of rows that is not padding."""
        held = self.tokens + self.eos_added
        return held / (held + self.padding) if held else 1.0

    def __add__(self, other: PackStats) -> PackStats:
        return PackStats(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


_FIELDS = {
    "input": dict,
    "skip": range(_MOST_SKIPPED),
    "offset": COUNT,
    "group": COUNT,
    "rows": COUNT,
    "counts": {each.name: COUNT for each in fields(PackStats)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How documents are packed."""

    eos_token_id: int | None
    strategy: PackStrategy
    num_packers: int
    seed: int | None  # None: rows are not shuffled
    group_rows: int
    long_documents: LongDocuments
    max_segments: int | None
    rows: RowOptions


@dataclass(frozen=True, slots=True)
class _Group:
    """Documents end to end, and where their pieces go."""

    columns: dict[str, npt.NDArray[Any]]
    placement: Placement


class PackedStage:
    """Rows packed from documents.

    The position is where a group begins, in documents and tokens of the input, and how many of its rows were given.
    """

    def __init__(self, documents: Stage, options: PackOptions) -> None:
        self._input, self._options = documents, options
        self._rest = Block()  # of the input
        self._waiting: list[tuple[Document, Callable[[], State]]] = []  # with their positions; in no group yet
        self._offset = 0  # tokens of the first of them that are in a group
        self._number = 0  # of the next group
        self._counts = PackStats()  # of all groups so far
        self._group: _Group | None = None
        self._next_row = 0
        self._group_start = self._group_end = self._here()

    def stats(self) -> PackStats:
        """Count what became of all tokens that are in groups so far, and of those that were dropped."""
        return self._counts

    def close(self) -> None:
        """Close the documents."""
        close(self._input)

    def next(self) -> Block:
        """Make the next rows of a group."""
        if self._group is None or self._next_row == self._group.placement.num_rows:
            self._group_start, self._next_row, self._group = self._group_end, 0, None
            self._group = self._make_group()
            if self._group is None:
                return Block()
            self._group_end = self._here()
        begin, num_rows = self._next_row, self._group.placement.num_rows
        self._next_row = min(begin + _ROWS_AT_ONCE, num_rows)
        rows = make_rows(self._group.columns, self._group.placement, begin, self._next_row, self._options.rows)
        return Block(rows, after=partial(_after_rows, self._group_start, self._group_end, begin, num_rows))

    def get_state(self) -> State:
        """Return where a group begins, and how many of its rows were given."""
        num_rows = 0 if self._group is None else self._group.placement.num_rows
        return _after_rows(self._group_start, self._group_end, self._next_row, num_rows, 0)

    def _here(self) -> State:
        """Return where the documents begin that are in no group yet."""
        return {
            "input": self._waiting[0][1]() if self._waiting else self._next_document(),
            "skip": 0,
            "offset": self._offset,
            "group": self._number,
            "counts": asdict(self._counts),
            "rows": 0,
        }

    def _next_document(self) -> State:
        return self._input.get_state() if self._rest.after is None else self._rest.after(0)

    def set_state(self, state: State) -> None:
        """Make the group of a state again."""
        check_fields(state, _FIELDS, "an iterator over packed rows")
        self._waiting, self._offset, self._group, self._next_row = [], 0, None, 0
        self._rest = resume(self._input, state["input"])
        counts = {each.name: state["counts"][each.name] for each in fields(PackStats)}
        self._number, self._counts = state["group"], PackStats(**counts)
        skip, offset, rows = state["skip"], state["offset"], state["rows"]
        if skip:  # documents before the group, in a state of an earlier release
            skipped, self._rest = skip_rows(BegunStage(self._rest, self._input), skip)
            if skipped < skip:
                raise refuse("skip", skip, "a number of documents that there are")
        if offset:
            self._read_documents()
            if not self._waiting or offset >= self._waiting[0][0].length:
                raise refuse("offset", offset, "a number of tokens that the document has")
            self._offset = offset
        self._group_start = self._group_end = self._here()
        if rows:
            self._group = self._make_group()
            if self._group is None or rows > self._group.placement.num_rows:
                raise refuse("rows", rows, "a number of rows that its group has")
            self._next_row, self._group_end = rows, self._here()

    def _read_documents(self) -> bool:
        """Read some more documents; tell whether there were any."""
        rows, self._rest = (self._rest if len(self._rest) else self._input.next()).split(_DOCUMENTS_AT_ONCE)
        if not len(rows):
            return False
        assert rows.after is not None  # noqa: S101
        for number, sample in enumerate(rows.samples()):
            position = partial(rows.after, number)
            self._waiting.append((self._prepare(sample, position), position))
        return True

    def _prepare(self, sample: Sample, position: Callable[[], State]) -> Document:
        options = self._options
        try:
            return prepare_document(
                sample,
                input_field=options.rows.input_field,
                more_fields=options.rows.pad_values,
                eos_token_id=options.eos_token_id,
                seq_length=options.rows.seq_length,
                long_documents=options.long_documents,
            )
        except DataError as error:
            raise type(error)(f"{_describe(position())}: {error.message}", **error.facts) from error

    def _make_group(self) -> _Group | None:
        options = self._options
        wanted = options.group_rows * options.rows.seq_length
        total, count = -self._offset, 0
        while True:
            while count < len(self._waiting) and total < wanted:
                total += self._waiting[count][0].length
                count += 1
            if total >= wanted or not self._read_documents():
                break
        self._number += 1
        if not count:
            return None
        documents = [document for document, _ in self._waiting[:count]]
        bounds = np.cumsum([0, *(document.length for document in documents)])
        begin = self._offset
        end = min(int(bounds[-1]), begin + wanted) if options.strategy == "greedy" else int(bounds[-1])
        columns = {
            name: values[begin:end]
            for name, values in join_documents(documents, options.rows.input_field, options.eos_token_id).items()
        }
        placement = self._pack(np.unique(np.clip(bounds, begin, end)) - begin)
        counts = self._count(documents, bounds, begin, end, placement)
        whole = int(np.searchsorted(bounds, end, side="right")) - 1  # documents that are in groups to their ends
        self._waiting = self._waiting[whole:]
        self._offset = end - int(bounds[whole])
        self._counts += counts
        return _Group(columns, placement)

    def _pack(self, bounds: Int64Array) -> Placement:
        options = self._options
        seq_length = options.rows.seq_length
        if options.strategy == "greedy":
            placement = cut_into_rows(bounds, seq_length)
        elif options.strategy == "pool":
            placement = pool(bounds, seq_length, options.num_packers)
        else:
            placement = best_fit(bounds, seq_length, options.max_segments)
        if options.seed is None:
            return placement
        # A last row that is not full stays the last: it is where the documents end.
        num_shuffled = placement.num_rows - (options.strategy == "greedy" and int(bounds[-1]) % seq_length > 0)
        order = permutation(hash_key("pack", options.seed, self._number), num_shuffled)
        return placement.reordered(np.concatenate([order, np.arange(num_shuffled, placement.num_rows)]))

    def _count(
        self, documents: list[Document], bounds: Int64Array, begin: int, end: int, placement: Placement
    ) -> PackStats:
        ends = bounds[1:]
        is_done = ends <= end
        adds_end = np.array([not document.has_own_end for document in documents])
        num_eos = int((adds_end & is_done & (ends > begin)).sum())
        num_pieces = np.bincount(
            np.searchsorted(ends, begin + placement.starts, side="right"), minlength=len(documents)
        )
        is_cut = (num_pieces > 1) | np.array([document.num_dropped > 0 for document in documents])
        is_dropped = np.array([document.is_dropped for document in documents])
        if begin:  # the rest of a document whose beginning is in an earlier group
            is_cut[0] = True
        return PackStats(
            rows=placement.num_rows,
            documents=int((is_done & ~is_dropped).sum()),
            tokens=end - begin - num_eos,
            eos_added=num_eos,
            padding=placement.num_rows * self._options.rows.seq_length - (end - begin),
            documents_cut=int((is_cut & is_done & ~is_dropped).sum()),
            documents_dropped=int((is_done & is_dropped).sum()),
            tokens_dropped=sum(document.num_dropped for document, done in zip(documents, is_done, strict=True) if done),
        )


def _after_rows(start: State, end: State, begin: int, num_rows: int, given: int) -> State:
    return end if begin + given == num_rows else {**start, "rows": begin + given}


def _describe(position: State) -> str:
    """Return which document a position in shards is before."""
    inner, name = position.get("inner") or {"row": 0}, position.get("name")
    is_row = set(inner) <= {"row", "byte", "line", "file", "given"}  # each of them a document
    return f"row {inner['row'] + inner.get('given', 0)} of {name}" if is_row else f"a document of {name}"
