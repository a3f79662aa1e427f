"""Samples one after the other, from a position that can be saved and gone back to.

A stage (a file, a transform, a mix) makes blocks and says where each begins. The base class does the rest: it hands
rows out singly or many at a time, and knows the exact position after the one given last.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, ClassVar, cast

from penstock.blocks.block import Block, join_blocks
from penstock.blocks.stage import State, count_after, row_after, saved_row
from penstock.errors import ResumeError, SampleIndexError
from penstock.order.state_fields import COUNT, check_fields, refuse, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.stage import Stage
    from penstock.order.state_fields import Fields
    from penstock.sources.files.found import FilesVersion, FileVersion
    from penstock.types import Sample

    # Opens something at a row, and gives its samples from there on, some at a time.
    OpenRows = Callable[[int], Iterator[list[Sample]]]

_NOTHING: Iterator[Any] = iter(())
_CHUNK = 32  # samples may be large
# Chunks grow while they take less than this, and shrink when they take longer.
_QUICK_S, _SLOW_S = 0.02, 0.1


class SampleIterator:
    """Gives samples, and has the position after the one that it gave last as a small state of plain values.

    Use it like any iterator, or take many samples at once with `take`, which costs less per sample. `read_block` is for
    what passes rows on.

    Args:
        stage: What makes the blocks; None: a derived class, which is a `Stage` itself.
        file: The file that positions are in, if it is one.
    """

    state_fields: ClassVar[Fields] = {}  # of a position of a derived class, checked before `set_state` is given it
    most_chunks_given: ClassVar[int] = 64  # after a position: following a damaged state could take for ever

    def __init__(self, stage: Stage | None = None, file: FileVersion | None = None) -> None:
        self._inner, self._file = stage, file
        self._is_resumed = False  # and nothing was read since
        self._block = Block()
        self._given = 0  # of the block, beside those that were given one by one since
        self._one_by_one: Iterator[Sample] = _NOTHING  # the rest of the block: going through it costs least
        self._failure: Exception | None = None

    def __iter__(self) -> SampleIterator:
        return self

    def __next__(self) -> Sample:
        for sample in self._one_by_one:
            return sample
        self._one_by_one = iter(self.read_block(as_samples=True).samples())
        return next(self._one_by_one)

    def take(self, count: int) -> list[Sample]:
        """Return so many samples; fewer only where the samples end, or before an error, which the next call raises."""
        return self.read_block(count, count, as_samples=True).samples()

    def read_block(self, at_least: int = 1, at_most: int = sys.maxsize, *, as_samples: bool = False) -> Block:
        """Return so many rows, and those that are at hand after them; fewer only as `take` does.

        With `as_samples`, they are in a list that may be changed, and without positions. All rows of a block become
        samples then, since the others are likely to be taken so, too.
        """
        self._count_given()
        parts: list[Block] = []
        taken = 0
        while taken < at_least:
            if self._given == len(self._block):
                stage = self._stage
                try:
                    if self._failure is not None:  # a generator that has failed would say that it is at its end
                        raise self._failure
                    start = stage.get_state()
                    block = stage.next()
                except Exception as error:  # noqa: BLE001  raised below, or the next time
                    self._failure = self._explained(error)
                    if parts:
                        break
                    raise self._failure from self._failure.__cause__
                after = block.after or partial(count_after, start)
                self._block = block.at(after if self._file is None else partial(self._after_in_file, after))
                self._given, self._is_resumed = 0, False
                if not len(block):
                    break
            end = self._given + at_most - taken
            part = Block(self._block.samples()[self._given : end]) if as_samples else self._block.cut(self._given, end)
            parts.append(part)
            taken += len(part)
            self._given += len(part)
        return join_blocks(parts)

    def _explained(self, error: Exception) -> Exception:
        if self._is_resumed and isinstance(error, SampleIndexError):  # the row is that of the state
            explained = ResumeError(f"the state does not fit: {error}", **error.facts)
            explained.__cause__ = error.__cause__
            return explained
        return error

    def _count_given(self) -> None:
        """Know how many samples of the block were given, also one by one."""
        if self._one_by_one is not _NOTHING:
            self._given = len(self._block) - length_hint(self._one_by_one)
            self._one_by_one = _NOTHING

    @property
    def num_at_hand(self) -> int:
        """How many samples can be given without reading any."""
        self._count_given()
        return len(self._block) - self._given

    def skip(self, count: int, most_chunks: int = sys.maxsize) -> int:
        """Pass over so many samples; gives how many there were, fewer only where the samples end, or so many blocks."""
        skipped = num_chunks = 0
        while skipped < count and num_chunks < most_chunks and (block := self.read_block(1, count - skipped)):
            num_chunks += 1
            skipped += len(block)
        return skipped

    def read(self) -> list[Sample]:
        """Return the samples that are at hand, or those of the next block; nothing where the samples end."""
        return self.read_block().samples()

    def state_dict(self) -> State:
        """Describe the position after the sample given last, as plain JSON values."""
        self._count_given()
        if self._given < len(self._block) and self._block.after is not None:
            return self._block.after(self._given)
        return self._in_file(self._stage.get_state())

    @property
    def _stage(self) -> Stage:
        return cast("Stage", self) if self._inner is None else self._inner  # itself would be a cycle that lives longer

    def _in_file(self, position: State) -> State:
        file = self._file
        return position if file is None else {**position, "file": {"bytes": file.num_bytes, "version": file.tag}}

    def _after_in_file(self, after: PositionAfter, given: int) -> State:
        return self._in_file(after(given))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `state_dict` of such an iterator described; what was read ahead is forgotten."""
        what = type(self).__name__ if self._file is None else f"the state in {self._file.name}"
        check_fields(state, {"given?": COUNT, **self._stage.state_fields}, what)
        position = dict(state)
        given = position.pop("given", None) or 0
        if self._file is not None:
            self._file.check(position.pop("file", None))
        self._block, self._given, self._failure = Block(), 0, None
        self._one_by_one, self._is_resumed = _NOTHING, True
        self._stage.set_state(position)
        if given and self.skip(given, self.most_chunks_given) < given:
            raise refuse("given", given, f"a number of samples that there are after {shown(position)}")

    def close(self) -> None:
        """Close what is open; the iterator is of no use afterwards."""
        if self._inner is not None:
            self._inner.close()


class RowIterator(SampleIterator):
    """Rows of a shard, each a sample: the position is the number of the next row."""

    state_fields: ClassVar[Fields] = {"row": COUNT}

    def __init__(self, open_rows: OpenRows, row: int = 0, num_rows: int | None = None) -> None:
        super().__init__()
        self._open_rows, self._row, self._num_rows = open_rows, row, num_rows
        self._chunks: Iterator[list[Sample]] | None = None

    def close(self) -> None:
        """Close the shard."""
        chunks, self._chunks = self._chunks, iter(())
        close = getattr(chunks, "close", None)
        if close is not None:
            close()

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
        self.close()
        self._row, self._chunks = saved_row(state, self._num_rows), None


class ChainIterator(SampleIterator):
    """Shards one after the other: the position is the number of the shard, and the position in it.

    Args:
        names: The shards, in the order in which they are read.
        open_shard: Opens one.
        first: The number of the first shard to read.
        row: The row where it begins.
        files: The versions of all files that they read.
    """

    state_fields: ClassVar[Fields] = {"shard": COUNT, "name?": str, "inner": dict, "files?": str}

    def __init__(
        self,
        names: Sequence[str],
        open_shard: Callable[[str, int], SampleIterator],
        *,
        first: int = 0,
        row: int = 0,
        files: FilesVersion | None = None,
    ) -> None:
        super().__init__()
        self._names, self._open_shard, self._files = names, open_shard, files
        self._number, self._first_row = first, row
        self._shard: SampleIterator | None = None

    def close(self) -> None:
        """Close the open shard."""
        if self._shard is not None:
            self._shard.close()
        self._number, self._shard = len(self._names), None

    def next(self) -> Block:
        """Read the next rows of the open shard, or of one after it."""
        while self._number < len(self._names):
            if self._shard is None:
                self._shard = self._open_shard(self._names[self._number], self._first_row)
            block = self._shard.read_block()
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
        return self._place(self._shard.state_dict())

    def _place(self, inner: State) -> State:
        name = self._names[self._number] if self._number < len(self._names) else None
        place = {"shard": self._number, "name": name, "inner": inner}
        return place if self._files is None else {**place, "files": self._files.digest}

    def set_state(self, state: State) -> None:
        """Go to a position in a shard."""
        if self._shard is not None:
            self._shard.close()
        number = state["shard"]
        name = self._names[number] if number < len(self._names) else None
        if number > len(self._names) or state.get("name") != name:
            raise ResumeError(
                f"the state is at shard {number}, {state.get('name')!r}, which is {name!r} here: the state belongs"
                " to a source with other shards"
            )
        self._number, self._first_row, self._shard = number, 0, None
        if name is not None and state["inner"]:
            self._shard = self._open_shard(name, 0)
            self._shard.load_state_dict(state["inner"])
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
