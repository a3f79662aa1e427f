"""What becomes of the rows of a task: parted into splits, transformed, without those that are bad if that is wanted."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.blocks.block import Block, join_blocks
from penstock.errors import DataError, ExtraColumnError, TransformError
from penstock.extras import require
from penstock.formats.base import get_format
from penstock.formats.mds import compile_encoder
from penstock.sources.transforms import BatchTransform, ChainedTransform, FlatMapTransform, apply_all, checked_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.blocks.stage import State
    from penstock.sources.base import ShardedSource
    from penstock.sources.iterators import SampleIterator
    from penstock.sources.transforms import AnyTransform
    from penstock.types import Sample

_ROWS_AT_ONCE = 64
_MOST_REJECTED = 10_000  # of a task: they are kept in its ledger
_SHOWN_CHARACTERS = 1000


class AnyNumberTransform(FlatMapTransform, written_name="transforms.AnyNumberTransform/1"):
    """Applies a function that returns a new sample, a list of them, or None for none."""

    def __call__(self, sample: Sample) -> Iterable[Sample]:
        """Return what the function makes of a sample."""
        made = self._fn(sample)
        if made is None:
            return ()
        return (made,) if isinstance(made, Mapping) else checked_samples(made)  # type: ignore[return-value]


class FitsColumns(BatchTransform, written_name="transforms.FitsColumns/1"):
    """Lets samples pass that can be written with some columns, and fails on others."""

    keeps_number = True
    batch_size = 256

    def __init__(self, columns: Mapping[str, str] | None, schema: Any, *, drops_extra: bool) -> None:
        self._columns, self._schema, self._drops_extra = columns, schema, drops_extra

    @cached_property
    def _encode(self) -> Callable[[Sample], Any]:
        return compile_encoder(get_format("mds").columns(self._columns or {}), takes_empty=True)

    def __call__(self, samples: list[Sample]) -> list[Sample]:
        """Return the samples."""
        if self._schema is not None:
            require("pyarrow", extra="parquet", purpose="writing Parquet").Table.from_pylist(samples, self._schema)
        elif self._columns is not None:
            for sample in samples:
                if not self._drops_extra and (extra := sample.keys() - self._columns.keys()):
                    raise ExtraColumnError(f"column {min(extra)!r} is not among the columns: pass columns=")
                self._encode(sample)
        return samples

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_encode"}


def as_chain(transform: Any) -> ChainedTransform:
    """Take transforms as they are, and a function as one that gives a sample, several or none."""
    each = transform if isinstance(transform, ChainedTransform) else [transform]
    return ChainedTransform([AnyNumberTransform(one) if inspect.isroutine(one) else one for one in each])


class SplitPlaces(Protocol):
    """Tells of rows in which split they are."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the splits."""

    def place(self, row: Sample, address: tuple[str, int]) -> int:
        """Return the number of the split of a row that has this place in a shard."""


class _PieceRow(NamedTuple):
    """A position between rows: of a piece, of a row in it, and how many rows were rejected before."""

    piece: int = 0
    row: int = 0
    inner: State | None = None  # the position of the open iterator, if there is one
    num_rejected: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one shard that belong to a task."""

    name: str  # of the shard
    first_row: int = 0
    end_row: int | None = None  # None: the end of the shard
    begin: State | None = None  # where the first row is, as an iterator over the shard says it; None: by its number

    def open(self, source: ShardedSource, row: int, position: State | None) -> SampleIterator:
        """Open the rows from one of them on, at a position of an iterator if it is known."""
        position = self.begin if position is None and row == 0 else position
        if position is None:
            return source.open_shard_at_row(self.name, self.first_row + row)
        rows = source.open_shard(self.name)
        rows.load_state_dict(position)
        return rows

    def left(self, row: int) -> int:
        """Return how many rows there are at most from one on."""
        return sys.maxsize if self.end_row is None else self.end_row - self.first_row - row


class TaskRows:
    """The samples of a task, in order; their position says which rows are done, and which of them were rejected.

    Args:
        source: Has the rows.
        pieces: Which of them, in order.
        transforms: What is applied to them, in order.
        on_rejected: Receives all rows that were rejected, at the end; None: a bad row is an error.
    """

    def __init__(
        self,
        source: ShardedSource,
        pieces: Sequence[Piece],
        transforms: Sequence[AnyTransform],
        *,
        on_rejected: Callable[[list[dict[str, Any]]], None] | None = None,
    ) -> None:
        self._source, self._pieces = source, pieces
        self._groups, self._on_rejected = _grouped(transforms), on_rejected
        sizes = [group.batch_size for group in self._groups if isinstance(group, BatchTransform)]
        self._rows_at_once = max([_ROWS_AT_ONCE, *sizes])
        self._rows: SampleIterator | None = None
        self._place = self._begun = _PieceRow()  # of the next row, and of the first whose samples are being given
        self._made = Block()
        self._given = 0
        self._rejected: list[dict[str, Any]] = []

    def take(self, count: int) -> list[Sample]:
        """Return so many of the next samples, or those that are left."""
        return self.take_block(count).samples()

    def take_block(self, count: int) -> Block:
        """Return the same in the form in which they come."""
        taken: list[Block] = []
        while count and (self._given < len(self._made) or self._read(count)):
            taken.append(self._made.cut(self._given, self._given + count))
            self._given += len(taken[-1])
            count -= len(taken[-1])
        return join_blocks(taken)

    def parted(self, rule: SplitPlaces) -> Iterator[tuple[int, list[Sample]]]:
        """Yield all samples, some at a time, with the number of their split: its rows are transformed by themselves."""
        while self._place.piece < len(self._pieces):
            self._begun, name = self._place, self._pieces[self._place.piece].name
            first, rows = self._next_rows(self._rows_at_once)
            parts: dict[int, list[tuple[int, Sample]]] = {}
            for number, row in enumerate(rows.samples(), first):
                parts.setdefault(rule.place(row, (name, number)), []).append((number, row))
            for split, numbered in sorted(parts.items()):
                yield split, self._transformed(numbered)
        if self._on_rejected is not None:
            self._on_rejected(self._rejected)

    def state_dict(self) -> dict[str, Any]:
        """Describe the position after the sample given last."""
        is_all_given = self._given == len(self._made)
        if is_all_given:
            self._note_place()
        place = self._place if is_all_given else self._begun
        rejected = self._rejected[: place.num_rejected]
        return {**place._asdict(), "given": 0 if is_all_given else self._given, "rejected": rejected}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where others stood."""
        self.close()
        self._place = self._begun = _PieceRow(*(state[name] for name in _PieceRow._fields))
        self._made, self._given, self._rejected = Block(), 0, list(state["rejected"])
        if state["given"]:
            self.take(state["given"])

    def close(self) -> None:
        """Close what is open."""
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.close()

    def _note_place(self) -> None:
        inner = None if self._rows is None else self._rows.state_dict()
        self._place = self._place._replace(inner=inner, num_rejected=len(self._rejected))

    def _read(self, count: int) -> bool:
        """Make samples of the next rows, of about so many if they are taken as they are; False: there are none."""
        self._made, self._given = Block(), 0
        is_plain = not self._groups and self._on_rejected is None
        while not self._made and self._place.piece < len(self._pieces):
            self._note_place()
            self._begun = self._place
            first, rows = self._next_rows(count if is_plain else self._rows_at_once)
            self._made = rows if is_plain else Block(self._transformed(list(enumerate(rows.samples(), first))))
            if self._place.piece == len(self._pieces) and self._on_rejected is not None:
                self._on_rejected(self._rejected)
        return bool(self._made)

    def _next_rows(self, count: int) -> tuple[int, Block]:
        """Read some rows of a piece, and return the number of the first in the shard with them."""
        place, piece = self._place, self._pieces[self._place.piece]
        wanted, first = min(count, piece.left(place.row)), piece.first_row + place.row
        read = Block()
        if wanted:
            try:
                if self._rows is None:
                    self._rows = piece.open(self._source, place.row, place.inner)
                read = self._rows.take_block(wanted)
            except DataError as error:
                self._reject(first, None, error)
                self.close()
                self._place = place._replace(row=place.row + 1, inner=None)
                return first, read
        if not read:
            self.close()
            self._place = _PieceRow(place.piece + 1)
            return first, read
        self._place = place._replace(row=place.row + len(read))
        return first, read

    def _transformed(self, rows: list[tuple[int, Sample]]) -> list[Sample]:
        """Apply all transforms; a batch that fails is tried again row by row, if bad rows are rejected."""
        for group in self._groups:
            made: list[tuple[int, Sample]] = []
            if isinstance(group, BatchTransform):
                for begin in range(0, len(rows), group.batch_size):
                    made += self._of_batch(group, rows[begin : begin + group.batch_size])
            else:
                for number, row in rows:
                    try:
                        made += [(number, each) for each in apply_all(group, row)]
                    except Exception as error:  # noqa: BLE001  of the user's function, and raised below
                        self._reject(number, row, error)
            rows = made
        return [row for _, row in rows]

    def _of_batch(self, transform: BatchTransform, rows: list[tuple[int, Sample]]) -> list[tuple[int, Sample]]:
        numbers = [number for number, _ in rows]
        try:
            made = list(transform([row for _, row in rows]))
            return list(zip(numbers if transform.keeps_number else numbers[:1] * len(made), made, strict=True))
        except Exception as error:  # noqa: BLE001  as above
            if len(rows) == 1 or self._on_rejected is None:
                self._reject(numbers[0], rows[0][1], error)
                return []
        return [one for each in rows for one in self._of_batch(transform, [each])]

    def _reject(self, row: int, sample: Sample | None, error: Exception) -> None:
        """Note a bad row, or raise what was wrong with it."""
        where = f"row {row} of {self._pieces[self._begun.piece].name}"
        if self._on_rejected is None:
            if sample is None:
                raise error
            if isinstance(error, DataError):
                raise TransformError(f"{where} cannot be converted: {error}") from error
            raise TransformError(f"the transform failed on {where}: {type(error).__name__}: {error}") from error
        if len(self._rejected) == _MOST_REJECTED:
            raise TransformError(
                f"{_MOST_REJECTED:,} rows of one task were bad, the last of them {where}: {error}. Mend the transform"
                " or the data"
            ) from error
        shown = None if sample is None else repr(sample)[:_SHOWN_CHARACTERS]
        self._rejected.append({"where": where, "error": f"{type(error).__name__}: {error}", "row": shown})


def _grouped(transforms: Sequence[AnyTransform]) -> list[BatchTransform | list[AnyTransform]]:
    """Join transforms of single rows that follow each other."""
    groups: list[BatchTransform | list[AnyTransform]] = []
    for each in transforms:
        if isinstance(each, BatchTransform):
            groups.append(each)
        elif groups and isinstance(groups[-1], list):
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def rejected_lines(rejected: Sequence[Mapping[str, Any]]) -> bytes:
    """Write rejected rows as lines of JSON."""
    return b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in rejected)
