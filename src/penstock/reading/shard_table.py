"""The shards of all streams, end to end: where each one is, and how it, or a few of its rows, is opened."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from operator import add
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.codecs.compress import reading_codec
from penstock.errors import ConfigError, CorruptShardError
from penstock.formats.base import GuessesRows, get_format
from penstock.formats.parts import open_files
from penstock.reading.source import OpenShard, Source
from penstock.threads import call_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.cache.cache import Cache
    from penstock.cache.shares import ShareListener
    from penstock.formats.base import ReadOptions, RowRanges, ShardReader
    from penstock.index.model import Index, IndexedShard
    from penstock.reading.local_folder import InPlace
    from penstock.reading.source import RowReader
    from penstock.types import Int64Array, Place, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFiles:
    """Where the files of one stream are: as they lie in a folder, in the cache, or some here and some there."""

    where: str  # for errors
    index: Index
    in_place: InPlace | None
    cached: int | None  # its number in the cache
    validates: bool = False  # whole files only: a digest says nothing of a part
    share: float = 1.0  # about how much of its shards is fetched, where that is only some columns
    options: ReadOptions  # how its values are read


class ShardTable(Source):
    """The shards of all streams that lie in stores and folders, by number, the streams laid end to end."""

    def __init__(self, streams: Sequence[StreamFiles], cache: Cache | None) -> None:
        self.streams = tuple(streams)
        self.cache = cache
        lengths = [files.index.lengths for files in self.streams]
        super().__init__(np.concatenate(lengths))
        self.first_shards = np.cumsum([0, *map(len, lengths)])

    def find(self, shard: int) -> tuple[int, int, IndexedShard]:
        """Return the stream of a shard, its number there, and what the index says of it."""
        stream = int(self.first_shards.searchsorted(shard, side="right")) - 1
        number = shard - int(self.first_shards[stream])
        return stream, number, self.streams[stream].index.shards[number]

    def open(self, shard: int) -> OpenShard:
        """Open a shard, fetching it first if need be; it stays on the disk until it is closed."""
        stream, number, info = self.find(shard)
        files = self.streams[stream]
        if files.in_place is not None and (files.cached is None or files.in_place.is_raw(info)):
            return OpenShard(files.in_place.open_shard(info, files.options))
        if files.cached is None or self.cache is None:
            raise ConfigError(f"stream {stream} has neither a folder nor a store")
        lease = self.cache.lease(files.cached, number, f"shard {shard + 1}/{len(self.spans)}")
        try:
            return OpenShard(open_files(lease.paths, info, files.options), lease)
        except BaseException:
            lease.close()
            raise

    def expect(self, shards: Int64Array, batches_ahead: Int64Array) -> None:
        """Announce to the cache which shards will be wanted, soonest first."""
        wanted = []
        for shard, ahead in zip(shards.tolist(), batches_ahead.tolist(), strict=True):
            stream, number, info = self.find(shard)
            files = self.streams[stream]
            if files.cached is not None and not (files.in_place is not None and files.in_place.is_raw(info)):
                wanted.append((files.cached, number, ahead))
        if self.cache is not None:
            self.cache.expect(wanted)

    def cached_shards(self, shards: Int64Array | None) -> Iterator[tuple[int, list[int]]]:
        """Number some shards, or all, that are not simply read where they lie, by their stream in the cache."""
        for number, files in enumerate(self.streams):
            if files.cached is None:
                continue
            first, end = int(self.first_shards[number]), int(self.first_shards[number + 1])
            if shards is None:
                yield files.cached, list(range(end - first))
            else:
                yield files.cached, (shards[(shards >= first) & (shards < end)] - first).tolist()

    def row_reader(self) -> RowReader | None:
        """Return what fetches a few rows alone."""
        return None if self.cache is None else RangedRows(self, self.cache)

    def fetched_rows(self, shard: int) -> FetchedRows | None:
        """Describe a shard that may be read in parts from its store; None: it lies in a folder, or is checked whole."""
        stream, number, info = self.find(shard)
        files, ranges = self.streams[stream], get_format(info.layout.format).row_ranges
        if files.cached is None or files.in_place is not None or files.validates or ranges is None:
            return None
        return FetchedRows(files.cached, number, info, ranges, files.options, _NO_ROWS)

    def share_limit(self, holder: ShareListener) -> None:
        """Let those who share the cache limit what is kept open of it."""
        if self.cache is not None:
            self.cache.keep(holder)

    def describe_shard(self, shard: int) -> str:
        """Describe where a shard is."""
        stream, _, info = self.find(shard)
        return f"{self.streams[stream].where}, {info.name}"

    def close(self) -> None:
        """Hang up on the fetcher."""
        if self.cache is not None:
            self.cache.close()

    @property
    def is_fetched(self) -> bool:
        """Whether any shard is not simply read where it lies."""
        return self.cache is not None

    @cached_property
    def sizes(self) -> Int64Array:
        """The size of each shard on disk, as it is read."""
        sizes = [(files.index.columns.raw_sizes, files.share) for files in self.streams]
        return np.concatenate([each if share == 1 else np.ceil(each * share).astype(np.int64) for each, share in sizes])


def check_layouts(index: Index, options: ReadOptions, where: str) -> None:
    """Refuse now what could not be read later: unknown formats, codecs and encodings, unsafe columns."""
    for layout in index.columns.layouts:
        try:
            get_format(layout.format).check(layout, options)
        except ConfigError as error:
            raise type(error)(f"{where}: {error}", **error.facts) from None
        if layout.compression is not None:
            reading_codec(layout.compression)


# --- A few rows of a shard that is far away: only their bytes are fetched, not the shard -----------------------------


# Past this part of its rows, or once this many were asked for, a shard is worth fetching whole.
_MAX_PART = 1 / 4
_MAX_ROWS = 64
_MOST_THREADS = 32
_NO_ROWS = np.zeros(0, np.int64)


class FetchedRows(NamedTuple):
    """Some rows of a shard in a store: its stream in the cache, its number there, what it is and how it is read."""

    stream: int
    shard: int
    info: IndexedShard
    ranges: RowRanges
    options: ReadOptions
    rows: Int64Array

    @property
    def key(self) -> str:
        """The name of the only file of the shard that is read."""
        return self.info.parts[0].raw.basename

    def likely_spans(self) -> list[Span]:
        """Return where the index lets one expect the rows, if anywhere."""
        return (self.ranges.likely_spans(self.info, self.rows) if isinstance(self.ranges, GuessesRows) else None) or []


class RangedRows:
    """Reads rows of a table by ranges for as long as that is less than fetching their shards."""

    def __init__(self, table: ShardTable, cache: Cache) -> None:
        self._table, self._cache = table, cache
        self._num_read: dict[int, int] = {}

    def is_worth_it(self, shard: int, num_rows: int, cost_bytes: float) -> bool:
        """Return whether rows of a shard should be read by ranges: it is absent, stored raw, and hardly used so far."""
        found = self._table.fetched_rows(shard)
        if found is None or not self._cache.has_ranges[found.stream]:
            return False
        part = found.info.parts[0]
        if part.packed is not None or part.span is not None or cost_bytes > part.raw.num_bytes:
            return False
        num_read = self._num_read.get(shard, 0)
        if num_read >= _MAX_ROWS or num_read + num_rows > max(1, int(found.info.num_samples * _MAX_PART)):
            return False
        return not self._cache.is_present(found.stream, found.shard)

    def open(
        self, wanted: Sequence[tuple[int, Int64Array]], meanwhile: Callable[[], None] = lambda: None
    ) -> list[ShardReader]:
        """Fetch rows of several shards at the same time, and give for each a reader of these rows alone, in order.

        `meanwhile` is called while the last of them are fetched, if these are known to be the last.
        """
        asked = [self._request(shard, rows) for shard, rows in wanted]
        located = self._locate(asked, meanwhile)
        missing = [(ask, place.spans) for ask, place in zip(asked, located, strict=True) if place.pieces is None]
        came = iter(self._read(missing, meanwhile))
        return [
            ask.ranges.open(ask.info, next(came) if place.pieces is None else place.pieces, ask.options)
            for ask, place in zip(asked, located, strict=True)
        ]

    def _locate(self, asked: Sequence[FetchedRows], meanwhile: Callable[[], None]) -> list[_Located]:
        """Learn where rows are, and read them at the same time where the index lets one expect them."""
        to_locate = [ask.ranges.spans_to_locate(ask.info, ask.rows) for ask in asked]
        likely = [ask.likely_spans() for ask in asked]
        together = list(map(add, to_locate, likely))
        located = []
        found = self._read(list(zip(asked, together, strict=True)), meanwhile if all(likely) else lambda: None)
        for ask, first, guess, pieces in zip(asked, to_locate, likely, found, strict=True):
            spans = ask.ranges.spans_of_rows(ask.info, ask.rows, pieces[: len(first)])
            located.append(_Located(spans, _pieces_within(spans, guess, pieces[len(first) :])))
        return located

    def _request(self, shard: int, rows: Int64Array) -> FetchedRows:
        found = self._table.fetched_rows(shard)
        if found is None:
            raise CorruptShardError(f"shard {shard} is not in a store, or cannot be read in ranges", shard=str(shard))
        self._num_read[shard] = self._num_read.get(shard, 0) + len(rows)
        return found._replace(rows=rows)

    def _read(
        self, wanted: Sequence[tuple[FetchedRows, list[Span]]], meanwhile: Callable[[], None]
    ) -> list[list[bytes]]:
        """Read ranges of many objects at once: one question for each stream."""
        cache = self._cache
        places: dict[int, list[Place]] = {}
        shards: dict[int, dict[str, int]] = {}
        for ask, spans in wanted:
            places.setdefault(ask.stream, []).extend((ask.key, span) for span in spans)
            shards.setdefault(ask.stream, {})[ask.key] = ask.shard
        if len(places) == 1:
            ((stream, each),) = places.items()
            found = {stream: iter(cache.read_many(stream, each, shards[stream], meanwhile))}
        else:
            asked = [partial(cache.read_many, stream, each, shards[stream]) for stream, each in places.items()]
            answers = call_all(asked, _MOST_THREADS, "penstock-ranges")
            found = {stream: iter(answer) for stream, answer in zip(places, answers, strict=True)}
        return [[next(found[ask.stream]) for _ in spans] for ask, spans in wanted]


class _Located(NamedTuple):
    """Where rows are, and their bytes if these came along."""

    spans: list[Span]
    pieces: list[bytes] | None


def _pieces_within(spans: list[Span], guess: list[Span], pieces: list[bytes]) -> list[bytes] | None:
    """Return the bytes of spans, if they are those, or lie within the one, that came along."""
    if spans == guess:
        return pieces
    if len(guess) != 1 or any(span.begin < guess[0].begin or span.end > guess[0].end for span in spans):
        return None
    begin = guess[0].begin
    return [pieces[0][span.begin - begin : span.end - begin] for span in spans]
