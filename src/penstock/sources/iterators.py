"""Samples one after the other, from a position that can be saved and gone back to.

Whatever gives samples (a file, a transform, a mix) reads them in chunks and says where a chunk begins. The base class
does the rest: it hands samples out singly or many at a time, and knows the exact position after the one given last.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from functools import partial
from itertools import islice
from operator import index, itemgetter, length_hint
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import ConfigError, ResumeError, SampleIndexError
from penstock.order.state_fields import COUNT, check_fields, refuse, shown
from penstock.sources.columns import cut_rows, join_rows, to_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.order.state_fields import Fields
    from penstock.sources.columns import Rows
    from penstock.sources.files.found import FilesVersion, FileVersion
    from penstock.types import Sample

    # Opens something at a row, and gives its samples from there on, some at a time.
    OpenRows = Callable[[int], Iterator[list[Sample]]]
    OpenShardAt = Callable[[int], "SampleIterator"]
    # Describes the position after so many samples of some that were read at once.
    PositionAfter = Callable[[int], "State"]

State = dict[str, Any]

_NOTHING: Iterator[Any] = iter(())
_CHUNK = 32  # samples may be large
# Chunks grow while they take less than this, and shrink when they take longer.
_QUICK_S, _SLOW_S = 0.02, 0.1


class SampleIterator(ABC):
    """Gives samples, and has the position after the one that it gave last as a small state of plain values.

    Use it like any iterator, or take many samples at once with `take`, which costs less per sample. `take_rows` and
    `read_rows` are for those who pass rows on: they give them as columns if the source has such. A derived class says
    how the next chunk is read, where it begins, and how to go there.
    """

    state_fields: ClassVar[Fields] = {}  # of a position, checked before `_seek` is given it
    most_chunks_given: ClassVar[int] = 64  # after a position: following a damaged state could take for ever

    def __init__(self) -> None:
        self.file: FileVersion | None = None  # that positions are in
        self._is_resumed = False  # and nothing was read since
        self._chunk: Rows = []
        self._given = 0  # of the chunk, beside those that were given one by one since
        self._one_by_one: Iterator[Sample] = _NOTHING  # the rest of the chunk: going through it costs least
        self._after: PositionAfter | None = None  # of the chunk
        self._failure: Exception | None = None

    def __iter__(self) -> SampleIterator:
        return self

    def __next__(self) -> Sample:
        for sample in self._one_by_one:
            return sample
        self._count_given()
        if self._given == len(self._chunk) and not self._next_chunk():
            raise StopIteration
        self._one_by_one = iter(self._chunk_samples()[self._given :])
        return next(self._one_by_one)

    def take(self, count: int) -> list[Sample]:
        """Give so many samples; fewer only where the samples end, or before an error, which the next call raises."""
        self._count_given()
        samples: list[Sample] = []
        while len(samples) < count and self._has_more(bool(samples)):
            part = self._chunk_samples()[self._given : self._given + count - len(samples)]
            samples += part
            self._given += len(part)
        return samples

    def take_rows(self, count: int) -> Rows:
        """Give the next samples as `take` does, as columns if they are."""
        return self._join_rows(count, count)

    def read_rows(self, at_least: int = 1, at_most: int = sys.maxsize) -> Rows:
        """Give so many samples, and those that are at hand after them; fewer only as `take` does."""
        return self._join_rows(at_least, at_most)

    def _join_rows(self, at_least: int, at_most: int) -> Rows:
        self._count_given()
        parts: list[Rows] = []
        taken = 0
        while taken < at_least and self._has_more(bool(parts)):
            part = cut_rows(self._chunk, self._given, self._given + at_most - taken)
            parts.append(part)
            taken += len(part)
            self._given += len(part)
        return join_rows(parts)

    def _has_more(self, has_some: bool) -> bool:
        """Have a chunk with something to give, if there is one; an error waits for who has something already."""
        if self._given < len(self._chunk):
            return True
        try:
            return self._next_chunk()
        except Exception:
            if not has_some:
                raise
            return False

    def _count_given(self) -> None:
        """Know how many samples of the chunk were given, also one by one."""
        if self._one_by_one is not _NOTHING:
            self._given = len(self._chunk) - length_hint(self._one_by_one)
            self._one_by_one = _NOTHING

    def _chunk_samples(self) -> list[Sample]:
        """Give the chunk as samples, and keep it so: those who take some of them will take the others."""
        if not isinstance(self._chunk, list):
            self._chunk = to_samples(self._chunk)
        return self._chunk

    @property
    def num_at_hand(self) -> int:
        """How many samples can be given without reading any."""
        self._count_given()
        return len(self._chunk) - self._given

    def skip(self, count: int, most_chunks: int = sys.maxsize) -> int:
        """Pass over so many samples; gives how many there were, fewer only where the samples end, or so many chunks."""
        self._count_given()
        skipped = num_chunks = 0
        while skipped < count and num_chunks < most_chunks and self._has_more(bool(skipped)):
            num_chunks += 1
            step = min(count - skipped, len(self._chunk) - self._given)
            skipped += step
            self._given += step
        if skipped < count and self._failure is not None:
            raise self._failure
        return skipped

    def read(self) -> list[Sample]:
        """Give the samples that are at hand, or the next chunk; nothing where the samples end."""
        return to_samples(self.read_rows())

    def state_dict(self) -> State:
        """Describe the position after the sample given last, as plain JSON values."""
        self._count_given()
        is_between = self._given == len(self._chunk) or self._after is None
        return self._in_file(self._position() if is_between else self._after(self._given))  # type: ignore[misc]

    def _in_file(self, position: State) -> State:
        file = self.file
        return position if file is None else {**position, "file": {"bytes": file.num_bytes, "version": file.tag}}

    def positions_of(self, count: int) -> PositionAfter:
        """Give what describes the position after each of the last samples, which one call of `read_rows` gave.

        It stays right when more is read, be it in another thread.
        """
        self._count_given()
        assert self._after is not None  # noqa: S101
        first = self._given - count
        after = partial(_count_from, self._after, first) if first else self._after
        return after if self.file is None else lambda given: self._in_file(after(given))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `state_dict` of such an iterator described; what was read ahead is forgotten."""
        what = type(self).__name__ if self.file is None else f"the state in {self.file.name}"
        check_fields(state, {"given?": COUNT, **self.state_fields}, what)
        position = dict(state)
        given = position.pop("given", None) or 0
        if self.file is not None:
            self.file.check(position.pop("file", None))
        self._chunk, self._given, self._after, self._failure = [], 0, None, None
        self._one_by_one, self._is_resumed = _NOTHING, True
        self._seek(position)
        if given and self.skip(given, self.most_chunks_given) < given:
            raise refuse("given", given, f"a number of samples that there are after {shown(position)}")

    def find_cuts(self, num_bytes: int) -> list[State]:  # noqa: ARG002
        """Find positions from its beginning to its end, about so many bytes apart, to which going costs little.

        Nothing, if there are none. The iterator is of no use afterwards.
        """
        return []

    def close(self) -> None:  # noqa: B027
        """Close what is open; the iterator is of no use afterwards."""

    def _next_chunk(self) -> bool:
        if self._failure is not None:  # a generator that has failed would say that it is at its end
            raise self._failure
        start = self._position()
        try:
            chunk = self._read_chunk()
        except Exception as error:  # noqa: BLE001  raised below
            self._failure = error
            if self._is_resumed and isinstance(error, SampleIndexError):  # the row is that of the state
                self._failure = ResumeError(f"the state does not fit: {error}", **error.facts)
            raise self._failure from error.__cause__
        self._chunk, self._given, self._is_resumed = chunk, 0, False
        self._after = self._positions_in_chunk(start) if len(chunk) else None
        return len(chunk) > 0

    def _positions_in_chunk(self, start: State) -> PositionAfter:
        """Give what describes the positions in the chunk that was just read, also when the next one is read.

        How many samples a chunk has may depend on how fast they come. So either it always begins at the same places,
        or positions do not tell where it began.
        """
        return partial(count_after, start)

    @abstractmethod
    def _read_chunk(self) -> Rows:
        """Read the next samples, as many as it is good to read at once; nothing where the samples end."""

    @abstractmethod
    def _position(self) -> State:
        """Say where the next chunk begins."""

    @abstractmethod
    def _seek(self, position: State) -> None:
        """Go to where a chunk may begin."""


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

    def _read_chunk(self) -> Rows:
        if self._chunks is None:
            self._chunks = self._open_rows(self._row)
        chunk = next((chunk for chunk in self._chunks if chunk), [])
        self._row += len(chunk)
        return chunk

    def _position(self) -> State:
        return {"row": self._row}

    def _positions_in_chunk(self, start: State) -> PositionAfter:
        return partial(row_after, start["row"])

    def _seek(self, position: State) -> None:
        self.close()
        self._row, self._chunks = saved_row(position, self._num_rows), None


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

    def _read_chunk(self) -> Rows:
        while self._number < len(self._names):
            if self._shard is None:
                self._shard = self._open_shard(self._names[self._number], self._first_row)
            chunk = self._shard.read_rows()
            if len(chunk):
                return chunk
            self._shard.close()
            self._number, self._first_row, self._shard = self._number + 1, 0, None
        return []

    def _position(self) -> State:
        if self._shard is None:
            return self._place({"row": self._first_row} if self._first_row else {})
        return self._place(self._shard.state_dict())

    def _place(self, inner: State) -> State:
        name = self._names[self._number] if self._number < len(self._names) else None
        place = {"shard": self._number, "name": name, "inner": inner}
        return place if self._files is None else {**place, "files": self._files.digest}

    def _positions_in_chunk(self, start: State) -> PositionAfter:  # noqa: ARG002
        assert self._shard is not None  # noqa: S101
        place, after = self._place({}), self._shard.positions_of(len(self._chunk))
        return lambda given: {**place, "inner": after(given)}

    def _seek(self, position: State) -> None:
        if self._shard is not None:
            self._shard.close()
        number = position["shard"]
        name = self._names[number] if number < len(self._names) else None
        if number > len(self._names) or position.get("name") != name:
            raise ResumeError(
                f"the state is at shard {number}, {position.get('name')!r}, which is {name!r} here: the state belongs"
                " to a source with other shards"
            )
        self._number, self._first_row, self._shard = number, 0, None
        if name is not None and position["inner"]:
            self._shard = self._open_shard(name, 0)
            self._shard.load_state_dict(position["inner"])
        if self._files is not None:
            self._files.check(position.get("files"))


def in_chunks(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    """Give samples some at a time, and one by one if they come slowly; an error comes after the samples before it."""
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


def check_row(name: str, row: int, num_rows: int | None) -> int:
    """Refuse a row that a shard does not have; the one after the last is fine, and has nothing after it."""
    try:
        row = index(row)  # that of NumPy would not do in a state
    except TypeError:
        raise ConfigError(f"row={row!r} is not a whole number") from None
    if row < 0 or (num_rows is not None and row > num_rows):
        known = "" if num_rows is None else f": it has {num_rows} rows"
        raise SampleIndexError(f"row {row} of shard {name!r} does not exist{known}", shard=name, row=row)
    return row


def count_after(start: State, given: int) -> State:
    """Describe a position by where some samples begin that are read at once, and how many of them come before it."""
    return {**start, "given": given} if given else start


def position_in_parts(parts: Sequence[tuple[int, PositionAfter]], given: int) -> State:
    """Describe a position in samples that were read in parts, each with how many samples come before it."""
    before, after = parts[bisect_right(parts, given, key=itemgetter(0)) - 1]
    return after(given - before)


def row_after(row: int, given: int) -> State:
    """Describe a position by the number of the row."""
    return {"row": row + given}


def _count_from(after: PositionAfter, first: int, given: int) -> State:
    return after(first + given)


def saved_row(position: State, num_rows: int | None) -> int:
    """Return the row of a position; one past the end, if that is known, is refused."""
    row: int = position["row"]
    if num_rows is not None and row > num_rows:
        raise refuse("row", row, f"one of the {num_rows} rows")
    return row
