"""What a pass reads from: shards by number, with samples numbered through all of them.

A source knows how many samples each shard has and how one is opened; all else (order, mixing, batches, resuming,
workers) is the same whatever it is. The shards of datasets in stores are one source (`shard_table.py`); a source of
your own may compute its samples, or read them from anywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from penstock.order.id_spans import IdSpans
from penstock.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from penstock.cache.shares import ShareListener
    from penstock.formats.base import Rows, ShardReader
    from penstock.types import Columns, Int64Array, Sample

PORTION_BYTES = 1 << 20

# Each is called with its `Stream` and gives the source of its samples.
sources: Registry[Any] = Registry("source", group="penstock.sources", builtin={})


class Closable(Protocol):
    """What is let go of."""

    def close(self) -> None:
        """Let go of it."""


@runtime_checkable
class MakesSource(Protocol):
    """What can be given to a `Stream` as a source, because it makes one of itself: a `ShardedSource`."""

    def as_stream_source(self, columns: tuple[str, ...] | None = None, limit_bytes: int | None = None) -> Source:
        """Return the source, of some columns or all; an error says why there is none.

        If it has to write files, these may take no more than so many bytes.
        """


@runtime_checkable
class ReadsFiles(Protocol):
    """A source whose files a stream may be able to read in place."""

    def as_files(self) -> SourceFiles | None:
        """Return the files, or None if their samples would not be the very same."""


@runtime_checkable
class KeepsRows(Protocol):
    """A source that may be a view: some rows of another one."""

    def as_view(self) -> tuple[Any, Callable[[], Any]] | None:
        """Return the source of all rows, and what finds the `KeptRows` of it; None: it is no view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """Files that a `ShardedSource` reads, if a stream can read them in place and gives the very same samples."""

    urls: tuple[str, ...]
    format: str
    columns: tuple[str, ...] | None = None  # None: all of them
    types: Mapping[str, str] | None = None  # of columns of CSV files
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    queries: Mapping[str, str] = field(default_factory=dict, repr=False)  # of files on the web, by their URLs


class CodeDigest(NamedTuple):
    """A digest of a function or class of a user that makes samples."""

    name: str
    digest: str  # "" if there is none
    reason: str = ""  # why there is none
    has_settings: bool = True  # which name what it does as well


class OpenShard(NamedTuple):
    """A reader of a shard and, if it has files, a lease that keeps them in place while the reader is open."""

    reader: ShardReader
    lease: Closable | None = None


class RowReader(Protocol):
    """Opens a few rows of shards that are far away, without the shards. Each process has its own."""

    def is_worth_it(self, shard: int, num_rows: int, cost_bytes: float) -> bool:
        """Return whether so many rows of a shard should be read alone; to ask takes as long as to read `cost_bytes`."""

    def open(self, wanted: Sequence[tuple[int, Int64Array]], meanwhile: Callable[[], None]) -> list[ShardReader]:
        """Return for each shard a reader of the rows that are wanted of it and no others, in their order.

        `meanwhile` may be called while they are fetched: what it says to expect takes nothing from them.
        """


class Source(ABC):
    """Where the samples of a stream come from, shard by shard. Inherit from it and define how a shard is opened.

    All threads of a process use the same object, and it is sent to forked and spawned workers, so it must be picklable.
    What only some sources do, such as fetching their shards, is not defined here: see the protocols below.

    Args:
        lengths: How many samples each shard has.
    """

    code_digests: Sequence[CodeDigest] = ()  # of functions that make samples: states with others are warned of

    def __init__(self, lengths: Sequence[int] | Int64Array) -> None:
        self.spans = IdSpans(lengths)

    @abstractmethod
    def open(self, shard: int) -> OpenShard:
        """Open a shard. Its reader is used by one thread at a time, and closed by the caller."""

    @property
    def sizes(self) -> Int64Array:
        """The bytes of each shard, which decide how much is read at once; zeros if samples are not stored."""
        return np.zeros(len(self.spans), np.int64)

    @property
    def content(self) -> str:
        """A word that changes with the samples, if there is one: a state of other samples is then refused."""
        return ""

    def describe_shard(self, shard: int) -> str:
        """Describe where a shard is, for error messages."""
        return f"shard {shard}"

    def close(self) -> None:  # noqa: B027
        """Close everything that is open; it is opened again when the source is used again."""


# --- What only some sources do: each is found by `isinstance`, for a source that defines it ------------------------


@runtime_checkable
class FetchesShards(Protocol):
    """A source whose shards may have to be fetched."""

    @property
    def is_fetched(self) -> bool:
        """Whether any of them may have to be. If so, `expect` is called."""

    def expect(self, shards: Int64Array, batches_ahead: Int64Array) -> None:
        """Receive the shards that will be opened, soonest first, and in how many batches; replaces the last call."""


@runtime_checkable
class ReadsFewRows(Protocol):
    """A source that may read a few rows of a shard without the others."""

    def row_reader(self) -> RowReader | None:
        """Return a reader for a few rows alone, or None if only whole shards can be opened."""


@runtime_checkable
class SharesSpace(Protocol):
    """A source whose open shards take space that other processes need, too."""

    def share_limit(self, holder: ShareListener) -> None:
        """Have this holder hear from now on how much it may keep open."""


@runtime_checkable
class HasPortions(Protocol):
    """A source that knows how many bytes of large samples should be read at a time."""

    @property
    def portion_bytes(self) -> int:
        """The bytes; more than `PORTION_BYTES` only if reading them together saves work."""


@runtime_checkable
class HasStretches(Protocol):
    """A source of samples that are best read one after the other, for an order that heeds them."""

    @property
    def stretches(self) -> Int64Array | None:
        """The ids at which such samples begin, if there are any."""


@runtime_checkable
class FollowsSamples(Protocol):
    """A source that wants to know of samples before they are read."""

    @property
    def samples_ahead(self) -> int:
        """How many samples before they are read. If any, `announce` is called."""

    def announce(self, ids: Int64Array, *, is_first: bool) -> None:
        """Receive the samples that this process reads after those before; the first ones of a pass replace all.

        Whether they are read in the end is not certain: a pass may be left.
        """


def fetched_by(source: Source) -> FetchesShards | None:
    """Return the source, if its shards may have to be fetched."""
    return source if isinstance(source, FetchesShards) and source.is_fetched else None


def samples_ahead(source: Source) -> int:
    """Return how many samples before they are read a source wants to know of them."""
    return source.samples_ahead if isinstance(source, FollowsSamples) else 0


def portion_bytes(source: Source) -> int:
    """Return how many bytes of large samples to read at a time."""
    return source.portion_bytes if isinstance(source, HasPortions) else PORTION_BYTES


def row_reader_of(source: Source) -> RowReader | None:
    """Return what reads a few rows of a source alone, if anything does."""
    return source.row_reader() if isinstance(source, ReadsFewRows) else None


def mean_sizes(source: Source) -> tuple[float, float]:
    """Return the bytes of a sample and of a shard, on average."""
    num_bytes = float(source.sizes.sum())
    return num_bytes / max(1, source.spans.num_samples), num_bytes / max(1, len(source.spans))


class FunctionReader:
    """A shard whose samples your function computes from the row number: the simplest way to write a `Source`."""

    def __init__(self, num_rows: int, sample_of: Callable[[int], Sample]) -> None:
        self._num_rows, self._sample_of = num_rows, sample_of

    def __len__(self) -> int:
        return self._num_rows

    def read(self, rows: Rows) -> list[Sample]:
        """Return the samples at these rows, in this order."""
        return [self._sample_of(int(row)) for row in rows]

    def read_columns(self, rows: Rows) -> Columns:
        """Return the same as columns."""
        samples = self.read(rows)
        names = samples[0] if samples else ()
        return {name: _as_column([sample[name] for sample in samples]) for name in names}

    def close(self) -> None:
        """Close nothing."""


def _as_column(values: list[Any]) -> npt.NDArray[Any] | list[Any]:
    """Make an array of numbers, or of arrays of one shape; anything else stays a list."""
    shapes = {np.shape(value) if isinstance(value, np.ndarray | np.generic | int | float) else None for value in values}
    return np.array(values) if len(shapes) == 1 and None not in shapes else values


# --- Several sources -------------------------------------------------------------------------------------------------


class ShardRange(NamedTuple):
    """Some shards of a source in a row: those of one stream."""

    source: Source
    first_shard: int
    num_shards: int

    @property
    def shards(self) -> slice:
        """Their numbers in the source."""
        return slice(self.first_shard, self.first_shard + self.num_shards)

    @property
    def lengths(self) -> Int64Array:
        """The samples of each."""
        return np.diff(self.source.spans.starts)[self.shards]


class JoinedSources(Source):
    """Numbers the shards of all ranges in their order."""

    def __init__(self, ranges: Sequence[ShardRange]) -> None:
        self._ranges = tuple(ranges)
        self._starts = np.cumsum([0, *(part.num_shards for part in ranges)])
        super().__init__(np.concatenate([part.lengths for part in ranges]))
        self._sources = list({id(part.source): part.source for part in ranges}.values())

    def open(self, shard: int) -> OpenShard:
        """Open a shard of the source that it belongs to."""
        source, number = self.find(shard)
        return source.open(number)

    @property
    def sizes(self) -> Int64Array:
        """The bytes of each shard."""
        return np.concatenate([part.source.sizes[part.shards] for part in self._ranges])

    @property
    def portion_bytes(self) -> int:
        """What all of them can do with."""
        return min(portion_bytes(part.source) for part in self._ranges)

    @property
    def is_fetched(self) -> bool:
        """Whether any source fetches its shards."""
        return any(map(fetched_by, self._sources))

    def expect(self, shards: Int64Array, batches_ahead: Int64Array) -> None:
        """Announce to each source what is expected of it, which may be nothing."""
        for source in self._sources:
            fetched = fetched_by(source)
            if fetched is not None:
                at, numbers = self.numbers_in(source, shards)
                fetched.expect(numbers, batches_ahead[at])

    @property
    def samples_ahead(self) -> int:
        """As many as any source wants to know of."""
        return max(map(samples_ahead, self._sources))

    def announce(self, ids: Int64Array, *, is_first: bool) -> None:
        """Announce to each source of its own samples."""
        shards, rows = self.spans.locate(ids)
        for source in self._sources:
            if isinstance(source, FollowsSamples) and source.samples_ahead:
                at, numbers = self.numbers_in(source, shards)
                source.announce(source.spans.starts[numbers] + rows[at], is_first=is_first)

    def row_reader(self) -> RowReader | None:
        """Return what reads rows of the sources that can."""
        readers = {id(source): row_reader_of(source) for source in self._sources}
        return _JoinedRows(self, readers) if any(readers.values()) else None

    def share_limit(self, holder: ShareListener) -> None:
        """Let every source limit the holder."""
        for source in self._sources:
            if isinstance(source, SharesSpace):
                source.share_limit(holder)

    def describe_shard(self, shard: int) -> str:
        """Describe where a shard is."""
        source, number = self.find(shard)
        return source.describe_shard(number)

    def close(self) -> None:
        """Close all sources."""
        for source in self._sources:
            source.close()

    def find(self, shard: int) -> tuple[Source, int]:
        """Return the source of a shard and its number there."""
        number = int(self._starts.searchsorted(shard, side="right")) - 1
        part = self._ranges[number]
        return part.source, shard - int(self._starts[number]) + part.first_shard

    def numbers_in(self, source: Source, shards: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Of some shards, say which belong to a source, by their places in the list, and what number each has there."""
        owners = self._starts.searchsorted(shards, side="right") - 1
        is_in = np.array([part.source is source for part in self._ranges])
        shifts = np.array([part.first_shard for part in self._ranges]) - self._starts[:-1]
        (at,) = np.nonzero(is_in[owners])
        return at, shards[at] + shifts[owners[at]]


class _JoinedRows:
    def __init__(self, joined: JoinedSources, readers: dict[int, RowReader | None]) -> None:
        self._joined, self._readers = joined, readers

    def is_worth_it(self, shard: int, num_rows: int, cost_bytes: float) -> bool:
        source, number = self._joined.find(shard)
        reader = self._readers[id(source)]
        return reader is not None and reader.is_worth_it(number, num_rows, cost_bytes)

    def open(self, wanted: Sequence[tuple[int, Int64Array]], meanwhile: Callable[[], None]) -> list[ShardReader]:
        asked: dict[int, list[tuple[int, Int64Array]]] = {}
        owners = []
        for shard, rows in wanted:
            source, number = self._joined.find(shard)
            owners.append(id(source))
            asked.setdefault(id(source), []).append((number, rows))
        opened = {}
        for number, (owner, each) in enumerate(asked.items(), start=1):
            reader, then = self._readers[owner], meanwhile if number == len(asked) else lambda: None
            opened[owner] = iter(reader.open(each, then) if reader is not None else ())
        return [next(opened[owner]) for owner in owners]
