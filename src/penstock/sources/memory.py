"""Sources of what is in memory: lists of samples, and datasets of the Hugging Face library."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.blocks.stage import check_row
from penstock.errors import ConfigError
from penstock.sources.base import ShardedSource, as_source
from penstock.sources.iterators import RowStage, in_chunks
from penstock.sources.shard_info import ShardInfo
from penstock.units import check_whole, checks_making

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.types import Sample


_CHUNK = 1024


@checks_making
class MemoryShardedSource(ShardedSource):
    """A list of samples, cut into shards of the same size. For tests, small datasets, and what you computed yourself.

    You get shallow copies, so changing a sample does not change the list.

    Args:
        samples: The samples, or anything that gives one for each number, such as a range of your own.
        num_shards: How many shards to cut them into.
        name: What the names of the shards begin with.
        fingerprint: A word that changes whenever the samples change, if results are to be cached.
    """

    makes_new_samples = True

    def __init__(
        self, samples: Sequence[Sample], *, num_shards: int = 1, name: str = "memory", fingerprint: str | None = None
    ) -> None:
        check_whole("num_shards", num_shards, 1)
        if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")) or isinstance(samples, str | Mapping):
            raise ConfigError(f"samples= takes a list of samples, each a dict, not {type(samples).__name__}")
        if len(samples) and not isinstance(samples[0], Mapping):
            raise ConfigError(f"samples= takes a list of dicts, by field, and the first of these is {samples[0]!r:.40}")
        self._samples = samples
        self._bounds = [number * len(samples) // num_shards for number in range(num_shards + 1)]
        self._names = [f"{name}:{number}" for number in range(num_shards)]
        self._fingerprint = fingerprint

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards."""
        return self._names

    @property
    def order_fingerprint(self) -> str | None:
        """The word that was given for the samples, with how they are cut."""
        return None if self._fingerprint is None else f"memory-{self._fingerprint}-{len(self._names)}"

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return the number of rows of a shard."""
        number = self.shard_number(shard_name)
        return ShardInfo(number, shard_name, self._bounds[number + 1] - self._bounds[number])

    @property
    def has_random_rows(self) -> bool:
        """They are all here."""
        return True

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:
        """Return the samples at these rows of a shard, in this order."""
        first = self._bounds[self.shard_number(shard_name)]
        return [dict(self._samples[first + int(row)]) for row in rows]

    def _read_chunks(self, shard_name: str, row: int) -> Iterator[list[Sample]]:
        number = self.shard_number(shard_name)
        stop = self._bounds[number + 1]
        for begin in range(self._bounds[number] + row, stop, _CHUNK):
            yield [dict(self._samples[place]) for place in range(begin, min(begin + _CHUNK, stop))]


_ROWS_AT_ONCE = 256


class HFDatasetShardedSource(ShardedSource):
    """A `Dataset` or `IterableDataset` of the Hugging Face library, or any sequence of samples: one shard.

    Rows of a `Dataset` are read many at a time, and in any order. An `IterableDataset` is read in order; to go to a
    row, it passes over those before it.

    Args:
        dataset: The dataset.
        name: What the name of the shard begins with.
    """

    def __init__(self, dataset: Any, name: str | None = None) -> None:
        self._dataset = dataset
        self._name = f"{name or 'hf_dataset'}:0"
        self.is_streaming = not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"))

    @property
    def shard_names(self) -> Sequence[str]:
        """The name of the one shard."""
        return (self._name,)

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint that the library gives the dataset, if it does."""
        given = getattr(self._dataset, "_fingerprint", None)
        return None if given is None else f"hf-{given}"

    @property
    def estimated_length(self) -> int | None:
        """The number of samples, if it is known."""
        return None if self.is_streaming else len(self._dataset)

    @property
    def has_random_rows(self) -> bool:
        """Whether any row can be read: not of what is streamed."""
        return not self.is_streaming

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return the number of rows, if it is known."""
        return ShardInfo(self.shard_number(shard_name), shard_name, self.estimated_length)

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:
        """Return the samples at these rows, in this order."""
        self.shard_number(shard_name)
        if self._has_columns:
            return _as_samples(self._dataset[list(rows)], len(rows))
        return [self._dataset[int(row)] for row in rows]

    def open_stage(self, shard_name: str, row: int = 0) -> RowStage:
        """Open the dataset at a row."""
        row = check_row(shard_name, row, self.estimated_length)
        return RowStage(self._stream if self.is_streaming else self._slices, row, self.estimated_length)

    @property
    def _has_columns(self) -> bool:
        """Whether several rows at once come as columns, as the library gives them."""
        return hasattr(self._dataset, "column_names")

    def _slices(self, row: int) -> Iterator[list[Sample]]:
        length = len(self._dataset)
        for begin in range(row, length, _ROWS_AT_ONCE):
            end = min(begin + _ROWS_AT_ONCE, length)
            if self._has_columns:
                yield _as_samples(self._dataset[begin:end], end - begin)
            else:
                yield [self._dataset[place] for place in range(begin, end)]

    def _stream(self, row: int) -> Iterator[list[Sample]]:
        samples = iter(self._dataset)
        skipped = sum(1 for _ in islice(samples, row))
        check_row(self._name, row, row if skipped == row else skipped)
        return in_chunks(samples)


def wrap_hf_dataset(dataset: Any, name: str | None = None) -> ShardedSource:
    """Turn a dataset of the Hugging Face library, or a sequence of samples, into a source; a source stays as it is."""
    if isinstance(dataset, ShardedSource) or hasattr(dataset, "as_source"):
        return as_source(dataset)
    is_dataset = hasattr(dataset, "column_names") or hasattr(dataset, "__getitem__") or hasattr(dataset, "__len__")
    if isinstance(dataset, str | bytes | dict) or not hasattr(dataset, "__iter__") or not is_dataset:
        raise ConfigError(
            f"cannot read a {type(dataset).__name__}: pass a dataset of the Hugging Face library, or a list of samples"
        )
    return HFDatasetShardedSource(dataset, name)


def _as_samples(columns: Any, num_rows: int) -> list[Sample]:
    names = list(columns)
    return [{name: columns[name][row] for name in names} for row in range(num_rows)]
