"""Samples one after the other, from a position that can be saved and gone back to; and the shards that they are in."""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import partial
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Protocol

from penstock.blocks.block import Block, join_blocks
from penstock.blocks.stage import resume, row_after, saved_row, unfit
from penstock.errors import ResumeError, SampleIndexError
from penstock.order.state_fields import COUNT, check_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.stage import OpenStage, Position, State
    from penstock.sources.shard_info import FilesVersion
    from penstock.types import Int64Array, Sample

    # Opens something at a row, and gives its samples from there on, some at a time.
    OpenRows = Callable[[int], Iterator[list[Sample]]]

_NOTHING: Iterator[Any] = iter(())
_CHUNK = 32  # samples may be large
# Chunks grow while they take less than this, and shrink when they take longer.
_QUICK_S, _SLOW_S = 0.02, 0.1
_CHAIN_FIELDS = {"shard": COUNT, "name?": str, "inner": dict, "files?": str}


class SampleIterator:
    """The samples of a stage. It has the position after the one that it gave last as a small state of plain values.

    Use it like any iterator, or take many samples at once with `take`, which costs less per sample.
    """

    def __init__(self, stage: OpenStage) -> None:
        self._stage = stage
        self._is_resumed = False  # and nothing was read since
        self._block = Block()  # what is left of it, beside those that were given one by one since
        self._one_by_one: Iterator[Sample] = _NOTHING  # its rest: going through it costs least
        self._failure: Exception | None = None

    def __iter__(self) -> SampleIterator:
        return self

    def __next__(self) -> Sample:
        for sample in self._one_by_one:
            return sample
        rest = self._rest()
        self._block = rest if len(rest) else self._read()
        self._one_by_one = iter(self._block.samples())
        return next(self._one_by_one)

    def take(self, count: int) -> list[Sample]:
        """Return so many samples; fewer only where the samples end, or before an error, which the next call raises."""
        return self.take_block(count, makes_samples=True).samples()

    def take_block(self, count: int, *, makes_samples: bool = False) -> Block:
        """Return so many rows in the form in which they come, or as samples that are made at once; fewer as `take`."""
        rest, parts = self._rest(), list[Block]()
        while count:
            if not len(rest):
                try:
                    rest = self._read()
                except Exception:
                    if parts:
                        break
                    raise
            if not len(rest):
                break
            if makes_samples:
                rest.samples()
            part, self._block = rest.split(count)
            rest = self._block
            parts.append(part)
            count -= len(part)
        return join_blocks(parts)

    def read(self) -> list[Sample]:
        """Return the samples that are at hand, or those of the next block; nothing where the samples end."""
        rest = self._rest()
        return self.take(len(rest)) if len(rest) else self._read().samples()

    def state_dict(self) -> State:
        """Describe the position after the sample given last, as plain JSON values."""
        return self.position()()

    def position(self) -> Position:
        """Return what describes the position after the sample given last, also once more is read."""
        after = self._rest().after
        return partial(dict, self._stage.get_state()) if after is None else partial(after, 0)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `state_dict` of such an iterator described; what was read ahead is forgotten."""
        self._block, self._one_by_one, self._failure = Block(), _NOTHING, None
        self._is_resumed = True
        self._block = resume(self._stage, state)

    def close(self) -> None:
        """Close what is open; the iterator is of no use afterwards."""
        self._stage.close()

    def _rest(self) -> Block:
        """Return what is left of the block that was read last."""
        if self._one_by_one is not _NOTHING:
            given = len(self._block) - length_hint(self._one_by_one)
            self._block, self._one_by_one = self._block.cut(given, len(self._block)), _NOTHING
        return self._block

    def _read(self) -> Block:
        """Read the next block; what has failed fails again: a generator that has would say that it is at its end."""
        if self._failure is None:
            try:
                block = self._stage.next()
            except Exception as error:  # noqa: BLE001  raised below
                self._failure = error
                if self._is_resumed and isinstance(error, SampleIndexError):  # the row is that of the state
                    self._failure = unfit(error)
                    self._failure.__cause__ = error.__cause__
            else:
                self._block, self._is_resumed = Block(), False
                return block
        raise self._failure from self._failure.__cause__


class RowStage:
    """Rows of a shard, each a sample: the position is the number of the next row."""

    def __init__(self, open_rows: OpenRows, row: int = 0, num_rows: int | None = None) -> None:
        self._open_rows, self._row, self._num_rows = open_rows, row, num_rows
        self._chunks: Iterator[list[Sample]] | None = None

    def close(self) -> None:
        """Close the shard."""
        chunks, self._chunks = self._chunks, iter(())
        if isinstance(chunks, Generator):
            chunks.close()

    def next(self) -> Block:
        """Read the next samples."""
        if self._chunks is None:
            self._chunks = self._open_rows(self._row)
        row, chunk = self._row, next((chunk for chunk in self._chunks if chunk), [])
        self._row += len(chunk)
        return Block(chunk, after=partial(row_after, row))

    def get_state(self) -> State:
        """Return which row is next."""
        return {"row": self._row}

    def set_state(self, state: State) -> None:
        """Go to a row."""
        row = saved_row(check_fields(state, {"row": COUNT}, "a shard"), self._num_rows)
        self.close()
        self._row, self._chunks = row, None


class OpensShards(Protocol):
    """A source, as far as reading its shards in order goes."""

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards."""

    @property
    def files_version(self) -> FilesVersion | None:
        """Which versions of which files it reads."""

    def open_stage(self, shard_name: str, row: int = 0) -> OpenStage:
        """Open a shard at a row."""


class ShardsInTurn:
    """Shards one after the other: the position is the number of the shard, and the position in it.

    Args:
        source: The source that has them.
        shard_indices: Their numbers, in the order in which they are read; by default all.
        first: How many of these to skip.
        row: The row where the first one that is read begins.
    """

    def __init__(
        self, source: OpensShards, shard_indices: Sequence[int] | None = None, first: int = 0, row: int = 0
    ) -> None:
        names = list(source.shard_names)
        wrong = next((each for each in shard_indices or () if not -len(names) <= each < len(names)), None)
        if wrong is not None:
            raise SampleIndexError(f"shard {wrong} is out of range: there are {len(names)} shards, numbered from 0")
        self._names = names if shard_indices is None else [names[number] for number in shard_indices]
        if not 0 <= first <= len(self._names):
            raise SampleIndexError(f"start_shard={first} is out of range: there are {len(self._names)} shards to read")
        self._open, self._files = source.open_stage, source.files_version
        self._number, self._first_row = first, row
        self._shard: OpenStage | None = None
        self._rest = Block()  # of the shard

    def close(self) -> None:
        """Close the open shard."""
        if self._shard is not None:
            self._shard.close()
        self._number, self._shard, self._rest = len(self._names), None, Block()

    def next(self) -> Block:
        """Read the next rows of the open shard, or of one after it."""
        while self._number < len(self._names):
            if self._shard is None:
                self._shard = self._open(self._names[self._number], self._first_row)
            block, self._rest = self._rest if len(self._rest) else self._shard.next(), Block()
            if len(block):
                assert block.after is not None  # noqa: S101
                return block.at(partial(_inside, self._place({}), block.after))
            self._shard.close()
            self._number, self._first_row, self._shard = self._number + 1, 0, None
        return Block()

    def get_state(self) -> State:
        """Return which shard it is, and the position in it."""
        if self._shard is None:
            return self._place({"row": self._first_row} if self._first_row else {})
        after = self._rest.after
        return self._place(self._shard.get_state() if after is None else after(0))

    def _place(self, inner: State) -> State:
        name = self._names[self._number] if self._number < len(self._names) else None
        place = {"shard": self._number, "name": name, "inner": inner}
        return place if self._files is None else {**place, "files": self._files.digest}

    def set_state(self, state: State) -> None:
        """Go to a position in a shard."""
        check_fields(state, _CHAIN_FIELDS, "an iterator over a source")
        number = state["shard"]
        name = self._names[number] if number < len(self._names) else None
        if number > len(self._names) or state.get("name") != name:
            raise ResumeError(
                f"the state is at shard {number}, {state.get('name')!r}, which is {name!r} here: the state belongs"
                " to a source with other shards"
            )
        self.close()
        self._number, self._first_row = number, 0
        if name is not None and state["inner"]:
            self._shard = self._open(name, 0)
            self._rest = resume(self._shard, state["inner"])
        if self._files is not None:
            self._files.check(state.get("files"))


def _inside(place: State, after: PositionAfter, given: int) -> State:
    return {**place, "inner": after(given)}


def in_chunks(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    """Yield samples some at a time, and one by one if they come slowly; an error comes after the samples before it."""
    iterator = iter(samples)
    size = 1
    while True:
        chunk: list[Sample] = []
        begin = time.perf_counter()
        try:
            chunk.extend(islice(iterator, size))
        except Exception:
            if chunk:  # what was read before is not lost
                yield chunk
            raise
        if not chunk:
            return
        took_s = time.perf_counter() - begin
        if took_s < _QUICK_S:
            size = min(2 * size, _CHUNK)
        elif took_s > _SLOW_S:
            size = max(size // 2, 1)
        yield chunk


def picked_rows(stage: OpenStage, rows: Int64Array) -> Iterator[list[Sample]]:
    """Yield some rows of a stage that begins at the first of them."""
    begin, taken = int(rows[0]), 0
    while taken < len(rows) and len(block := stage.next()):
        end = taken + int(rows[taken:].searchsorted(begin + len(block)))
        if end > taken:
            samples = block.samples()
            yield [samples[row] for row in (rows[taken:end] - begin).tolist()]
        begin, taken = begin + len(block), end
