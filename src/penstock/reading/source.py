"""What a pass reads from: shards by number, with samples numbered through all of them.

A source knows how many samples each shard has and how one is opened; all else (order, mixing, batches, resuming,
workers) is the same whatever it is. The shards of datasets in stores are one source (`shard_table.py`); a source of
your own may compute its samples, or read them from anywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from penstock.order.id_spans import IdSpans
from penstock.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from penstock.cache.shares import ShareListener
    from penstock.formats.base import Rows, ShardReader
    from penstock.types import Columns, Int64Array, Sample

# Each is called with its `Stream` and gives the source of its samples.
sources: Registry[Any] = Registry("source", group="penstock.sources", builtin={})


class Closable(Protocol):
    """What is let go of."""

    def close(self) -> None:
        """Let go of it."""


class OpenShard(NamedTuple):
    """A reader, and what keeps its files where they are for as long as it is open."""

    reader: ShardReader
    lease: Closable | None = None


class RowReader(Protocol):
    """Opens a few rows of shards that are far away, without the shards. Each process has its own."""

    def is_worth_it(self, shard: int, num_rows: int) -> bool:
        """Tell whether so many rows of a shard should be read alone."""
        ...

    def open(self, wanted: Sequence[tuple[int, Int64Array]]) -> list[ShardReader]:
        """Give for each shard a reader of the rows that are wanted of it and no others, in their order."""
        ...


class Source(ABC):
    """Shards by number. Derive from it and say how one is opened; the rest is for shards that have to be fetched.

    One object serves all threads of a process and is carried to forked and spawned workers, so it must pickle.

    Args:
        lengths: How many samples each shard has.
    """

    def __init__(self, lengths: Sequence[int] | Int64Array) -> None:
        self.spans = IdSpans(lengths)

    @abstractmethod
    def open(self, shard: int) -> OpenShard:
        """Open a shard. Its reader is used by one thread at a time, and closed by whoever asked for it."""
        ...

    @property
    def sizes(self) -> Int64Array:
        """The bytes of each shard, by which it is decided how much to read at once; zeros if samples are not stored."""
        return np.zeros(len(self.spans), np.int64)

    @property
    def is_fetched(self) -> bool:
        """Whether shards may have to be fetched: then it is told which will be wanted."""
        return False

    def expect(self, shards: Int64Array, batches_ahead: Int64Array) -> None:  # noqa: B027
        """Hear which shards will be opened, soonest first, and in how many batches; replaces what was said before."""

    def row_reader(self) -> RowReader | None:
        """Give what reads a few rows alone, or None if only whole shards can be opened."""
        return None

    def share_limit(self, holder: ShareListener) -> None:  # noqa: B027
        """Tell this holder from now on how much it may keep open, if others need the room."""

    def describe_shard(self, shard: int) -> str:
        """Say where a shard is, for errors."""
        return f"shard {shard}"

    def close(self) -> None:  # noqa: B027
        """Let go of what is held open; using the source again opens it anew."""


def mean_sizes(source: Source) -> tuple[float, float]:
    """Give the bytes of a sample and of a shard, on average."""
    num_bytes = float(source.sizes.sum())
    return num_bytes / max(1, source.spans.num_samples), num_bytes / max(1, len(source.spans))


class FunctionReader:
    """A shard whose samples a function gives, by their row: the shortest way to a source of your own."""

    def __init__(self, num_rows: int, sample_of: Callable[[int], Sample]) -> None:
        self._num_rows, self._sample_of = num_rows, sample_of

    def __len__(self) -> int:
        return self._num_rows

    def read(self, rows: Rows) -> list[Sample]:
        """Give the samples at these rows, in this order."""
        return [self._sample_of(int(row)) for row in rows]

    def read_columns(self, rows: Rows) -> Columns:
        """Give the same by column."""
        samples = self.read(rows)
        names = samples[0] if samples else ()
        return {name: _as_column([sample[name] for sample in samples]) for name in names}

    def rest(self) -> None:
        """Keep nothing: there is nothing to let go of."""

    def close(self) -> None:
        """Close nothing."""


def _as_column(values: list[Any]) -> npt.NDArray[Any] | list[Any]:
    """Make an array of numbers, or of arrays of one shape; anything else stays a list."""
    shapes = {np.shape(value) if isinstance(value, np.ndarray | np.generic | int | float) else None for value in values}
    return np.array(values) if len(shapes) == 1 and None not in shapes else values
