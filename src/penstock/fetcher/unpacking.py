"""Shards that their formats unpack: which bytes of an object are fetched for them, and what is made of these.

What it takes stands in the index of the edition, which is mapped here as in every reader.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from penstock.cachedir.editions import Edition
from penstock.codecs.unpack import map_file, release
from penstock.errors import CorruptShardError
from penstock.storage.ranges import cut_object, cut_span, join_spans
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from penstock.formats.files import FileFormat
    from penstock.index.model import Index, IndexedShard
    from penstock.wire.item import Item, StoredFile

_MOST_RAW_BYTES = 1 << 30  # unpacked at once; a shard that is larger is unpacked alone
_REMEMBERED = 4096
_INDEXES = 16


class FetchedSpans:
    """Spans of an object that lie in a file, one after the other."""

    def __init__(self, name: str, num_bytes: int, spans: Sequence[Span], data: memoryview) -> None:
        self.name = name
        self.num_bytes = num_bytes
        self._spans, self._data = spans, data

    def read(self, begin: int, end: int) -> memoryview:
        """Return a range of the object that lies within one of the spans."""
        place = 0
        for span in self._spans:
            if span.begin <= begin <= end <= span.end:
                return self._data[place + begin - span.begin : place + end - span.begin]
            place += len(span)
        raise CorruptShardError(
            f"{self.name} does not match its index: bytes {begin} to {end} are needed but not part of the shard",
            name=self.name,
        )


class UnpackedBytes:
    """How many bytes may be in the making at once: memory for them is bounded, whatever the number of threads."""

    def __init__(self, most: int = _MOST_RAW_BYTES) -> None:
        self._most, self._taken = most, 0
        self._changed = threading.Condition()

    @contextmanager
    def taking(self, num_bytes: int) -> Iterator[None]:
        """Wait until so many more may be made; what is larger than all waits until it is alone."""
        taken = min(num_bytes, self._most)
        with self._changed:
            self._changed.wait_for(lambda: self._taken + taken <= self._most)
            self._taken += taken
        try:
            yield
        finally:
            with self._changed:
                self._taken -= taken
                self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class ShardUnpacking:
    """How one shard is unpacked."""

    info: IndexedShard
    form: FileFormat
    columns: tuple[str, ...] | None
    spans: tuple[Span, ...]
    threads: threading.Semaphore
    memory: UnpackedBytes

    @property
    def num_bytes(self) -> int:
        """The bytes that are fetched."""
        return sum(map(len, self.spans))

    @property
    def estimate(self) -> int:
        """About how many bytes unpacking gives: the fetched part of what the whole shard would."""
        part = self.info.parts[0]
        return -(-part.raw.num_bytes * self.num_bytes // max(1, part.stored.num_bytes))

    def run(self, packed: Path, raw: Path, where: str) -> None:
        """Unpack what was fetched to one file into another."""
        object_bytes = self.info.parts[0].span.object_bytes if self.info.parts[0].span else None
        with self.memory.taking(self.estimate), self.threads:
            data = map_file(packed)
            view = memoryview(data)
            try:
                stored = FetchedSpans(where, object_bytes or 0, self.spans, view)
                with raw.open("xb") as out:
                    self.form.unpack(self.info, self.columns, stored, out)
            finally:
                view.release()
                release(data)


class FormatUnpacker:
    """Knows how items are unpacked. Safe for threads."""

    def __init__(self, threads: threading.Semaphore, open_index: Callable[[Path], Index]) -> None:
        self._threads, self._memory = threads, UnpackedBytes()
        self._index_at = lru_cache(_INDEXES)(open_index)
        self._shard_of = lru_cache(_REMEMBERED)(self._make)

    def of(self, directory: Path, item: Item) -> ShardUnpacking | None:
        """Return how an item is unpacked; None: its format has no part in that."""
        if item.format is None or item.number is None:
            return None
        return self._shard_of(Edition(directory, item.edition).index_path, item.number, item.columns)

    def resolve(self, directory: Path, item: Item) -> Item:
        """Return an item with the bytes that will be fetched and, about, those that will stay: of the columns only."""
        found = self.of(directory, item)
        if found is None:
            return item
        (part,) = item.parts
        raw = part.raw._replace(estimate=found.estimate)
        packed = part.stored._replace(num_bytes=found.num_bytes)
        return item._replace(parts=(part._replace(raw=raw, packed=packed),))

    def _make(self, index: Path, number: int, columns: tuple[str, ...] | None) -> ShardUnpacking:
        from penstock.formats.files import get_file_format  # with NumPy, which most fetchers never need

        info = self._index_at(index).shards[number]
        form = get_file_format(info.layout.format)
        spans = tuple(join_spans(form.spans(info, columns)))
        object_bytes = info.parts[0].span.object_bytes if info.parts[0].span else None
        if spans and object_bytes is not None and spans[-1].end > object_bytes:
            name = info.parts[0].raw.basename
            raise CorruptShardError(f"{name} lies beyond the end of its file: index it again", name=name)
        return ShardUnpacking(info, form, columns, spans, self._threads, self._memory)


class PlacedSpan(NamedTuple):
    """A piece of an object, and where in the file it belongs."""

    span: Span
    place: int


def place_spans(
    file: StoredFile, num_bytes: int, unpacks: ShardUnpacking | None, *, in_one: bool = False
) -> list[PlacedSpan]:
    """Cut what is fetched into pieces: a whole object, or the spans of it that hold the file.

    With `in_one` a whole object is not cut: each piece would come with all that lies before it.
    """
    if file.span is None and in_one:
        return [PlacedSpan(Span(0, num_bytes), 0)]
    if file.span is None:
        return [PlacedSpan(span, span.begin) for span in cut_object(num_bytes)]
    begin = file.span.offset
    spans = [Span(begin, begin + num_bytes)] if unpacks is None else unpacks.spans
    placed, place = [], 0
    for span in spans:
        placed += [PlacedSpan(piece, place + piece.begin - span.begin) for piece in cut_span(span)]
        place += len(span)
    return placed or [PlacedSpan(Span(begin, begin), 0)]
