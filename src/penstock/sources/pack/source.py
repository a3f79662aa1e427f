"""`PackedShardedSource`: tokenized documents packed into rows of one length, group by group."""

from __future__ import annotations

from copy import copy
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from penstock.blocks.block import Block
from penstock.blocks.stage import BegunStage, open_at_row, resume, skip_rows
from penstock.errors import ConfigError, DataError
from penstock.order.keys import hash_key, permutation
from penstock.order.state_fields import COUNT, check_fields, refuse
from penstock.sources.base import ShardedSource, as_source
from penstock.sources.iterators import ShardsInTurn
from penstock.sources.pack.rows import (
    Document,
    LongDocuments,
    Placement,
    RowOptions,
    best_fit,
    cut_into_rows,
    join_documents,
    make_rows,
    pool,
    prepare_document,
)
from penstock.units import check_whole, checks_making

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.stage import OpenStage, Position, State
    from penstock.sources.base import GivesSource
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

    def __init__(self, documents: OpenStage, options: PackOptions) -> None:
        self._input, self._options = documents, options
        self._rest = Block()  # of the input
        self._waiting: list[Document] = []  # in no group yet
        self._first = 0  # the number of the first of them, since a state was loaded
        self._read: list[tuple[int, PositionAfter]] = []  # the first of those read together, and their positions
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
        self._input.close()

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

    def _here(self) -> Position:
        """Return what describes where the documents begin that are in no group yet."""
        if self._waiting:
            while len(self._read) > 1 and self._read[1][0] <= self._first:
                del self._read[0]
            begin, after_begin = self._read[0]
            position = partial(after_begin, self._first - begin)
        else:
            after = self._rest.after
            position = partial(dict, self._input.get_state()) if after is None else partial(after, 0)
        return partial(_before_group, position, self._offset, self._number, self._counts)

    def set_state(self, state: State) -> None:
        """Make the group of a state again."""
        check_fields(state, _FIELDS, "an iterator over packed rows")
        self._waiting, self._read, self._first = [], [], 0
        self._offset, self._group, self._next_row = 0, None, 0
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
            if not self._waiting or offset >= self._waiting[0].length:
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
        self._read.append((self._first + len(self._waiting), rows.after))
        after = rows.after
        self._waiting += [self._prepare(sample, after, number) for number, sample in enumerate(rows.samples())]
        return True

    def _prepare(self, sample: Sample, after: PositionAfter, number: int) -> Document:
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
            raise type(error)(f"{_describe(after(number))}: {error.message}", **error.facts) from error

    def _make_group(self) -> _Group | None:
        options = self._options
        wanted = options.group_rows * options.rows.seq_length
        total, count = -self._offset, 0
        while True:
            while count < len(self._waiting) and total < wanted:
                total += self._waiting[count].length
                count += 1
            if total >= wanted or not self._read_documents():
                break
        self._number += 1
        if not count:
            return None
        documents = self._waiting[:count]
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
        self._waiting, self._first = self._waiting[whole:], self._first + whole
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


def _before_group(position: Position, offset: int, number: int, counts: PackStats) -> State:
    about = {"offset": offset, "group": number, "counts": asdict(counts)}
    return {"input": position(), "skip": 0, **about, "rows": 0}


def _after_rows(start: Position, end: Position, begin: int, num_rows: int, given: int) -> State:
    return end() if begin + given == num_rows else {**start(), "rows": begin + given}


def _describe(position: State) -> str:
    """Return which document a position in shards is before."""
    inner, name = position.get("inner") or {"row": 0}, position.get("name")
    is_row = set(inner) <= {"row", "byte", "line", "file", "given"}  # each of them a document
    return f"row {inner['row'] + inner.get('given', 0)} of {name}" if is_row else f"a document of {name}"


_ROWS_PER_FACTOR = 100
_MOST_TOKENS_OF_GROUP = 1 << 22
_LEAST_ROWS_OF_GROUP = 8


@checks_making
class PackedShardedSource(ShardedSource):
    """Documents of a source, packed into rows of `seq_length` tokens. Every token is in a row or counted as dropped.

    A row has `input_ids`, `segment_ids` (0, 1, … for the documents in it, -1 for padding), `position_ids` (from 0 in
    each document), `attention_mask` and `labels` (the tokens; -100 for padding and for the first token of each
    document). It has one shard. Rows are made in groups, and the state of an iterator is where a group begins.

    Args:
        source: The documents, each with a list or an array of tokens.
        seq_length: Tokens per row.
        eos_token_id: The token that ends a document; added unless it is there already. None adds nothing.
        pad_token_id: The token in the rest of a row that is not full.
        strategy: `"greedy"` lays documents end to end and cuts: no padding, and documents go over the ends of rows.
            `"pool"` puts each document whole into the tightest of a few open rows, and cuts only what fits in none.
            `"first_fit"` never cuts a document that fits in a row: it puts the longest first, each into the row with
            the least space that suffices.
        num_packers: The open rows of `"pool"`.
        include_segment_ids: Give `segment_ids`.
        input_field: Where the tokens are.
        shuffle: Shuffle the rows of each group.
        shuffle_buffer_factor: Size of a group, in hundreds of rows; smaller if rows are long.
        seed: Seeds the shuffling.
        long_documents: What to do with a document that is longer than a row: `"split"` gives it several rows,
            `"truncate"` one, `"drop"` none.
        token_columns: Further fields with a value for each token, and the value for padding: `{"loss_mask": 0}`. At an
            added end of document they repeat the last value. `labels` of documents take the place of the tokens.
        max_segments: The most documents in a row, for `"first_fit"`.
        include_cu_seqlens: Give `cu_seqlens`, where documents begin and end in a row, for kernels of block-diagonal
            attention. `join_cu_seqlens` joins those of a batch.
    """

    def __init__(
        self,
        source: ShardedSource | GivesSource,
        seq_length: int,
        eos_token_id: int | None,
        pad_token_id: int = 0,
        strategy: PackStrategy = "greedy",
        num_packers: int = 4,
        include_segment_ids: bool = True,
        input_field: str = "input_ids",
        shuffle: bool = True,
        shuffle_buffer_factor: int = 10,
        seed: int | None = None,
        *,
        long_documents: LongDocuments = "split",
        token_columns: Mapping[str, Any] | None = None,
        max_segments: int | None = None,
        include_cu_seqlens: bool = False,
    ) -> None:
        for name, value, least in (
            ("seq_length", seq_length, 2),
            ("num_packers", num_packers, 1),
            ("shuffle_buffer_factor", shuffle_buffer_factor, 1),
            ("max_segments", max_segments, 1),
        ):
            check_whole(name, value, least)
        if strategy not in get_args(PackStrategy):
            raise ConfigError(f"strategy={strategy!r} is unknown: use 'greedy', 'pool' or 'first_fit'")
        if long_documents not in get_args(LongDocuments):
            raise ConfigError(f"long_documents={long_documents!r} is unknown: use 'split', 'truncate' or 'drop'")
        if max_segments is not None and strategy != "first_fit":
            raise ConfigError("max_segments= only works with strategy='first_fit'")
        self._source = as_source(source)
        self._input_sources = (self._source,)
        self._options = PackOptions(
            eos_token_id=eos_token_id,
            strategy=strategy,
            num_packers=num_packers,
            seed=int(seed or 0) if shuffle else None,
            group_rows=_rows_of_group(seq_length, shuffle_buffer_factor),
            long_documents=long_documents,
            max_segments=max_segments,
            rows=RowOptions(
                seq_length=seq_length,
                pad_token_id=pad_token_id,
                input_field=input_field,
                pad_values=dict(token_columns or {}),
                has_segment_ids=include_segment_ids,
                has_cu_seqlens=include_cu_seqlens,
            ),
        )
        self._opened: PackedStage | None = None

    @property
    def shard_names(self) -> Sequence[str]:
        """The name of the one shard."""
        return ("packed",)

    @property
    def order_fingerprint(self) -> str | None:
        """A hash of the source and of all settings."""
        inner = self._source.order_fingerprint
        return None if inner is None else f"{inner}-packed-{hash_key(repr(self._options)):016x}"

    @property
    def num_parts(self) -> int:
        """How many parts there can be, each packed by itself."""
        return self._source.num_parts

    def part(self, number: int, num_parts: int) -> ShardedSource:
        """Return rows packed of a part of the documents."""
        made = copy(self)
        made._source = self._source.part(number, num_parts)
        made._input_sources = (made._source,)
        return made

    def open_stage(self, shard_name: str, row: int = 0) -> OpenStage:
        """Open the rows at one of them; to get there, all rows before it are packed. A state needs none of them."""
        self._opened = PackedStage(ShardsInTurn(self._source), self._options)
        return open_at_row(self._opened, shard_name, row)

    def stats(self) -> PackStats:
        """Return where the tokens went, for the iterator that was opened last."""
        return PackStats() if self._opened is None else self._opened.stats()


def _rows_of_group(seq_length: int, factor: int) -> int:
    return min(_ROWS_PER_FACTOR * factor, max(_LEAST_ROWS_OF_GROUP, _MOST_TOKENS_OF_GROUP // seq_length))
