"""A `ShardedSource` whose rows can be read in any order, as a source of a `StreamingDataset`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.errors import ConfigError, MissingColumnError
from penstock.reading.source import FunctionReader, OpenShard, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.formats.base import Rows
    from penstock.reading.source import CodeDigest
    from penstock.types import Sample


class RowsByNumber(Protocol):
    """What is asked of a `ShardedSource` here."""

    @property
    def code_digests(self) -> Sequence[CodeDigest]:
        """The functions that make the samples."""
        ...

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards."""
        ...

    @property
    def has_random_rows(self) -> bool:
        """Whether `read_rows` can be called."""
        ...

    @property
    def order_fingerprint(self) -> str | None:
        """A hash that changes with the data, if it can be known."""
        ...

    def shard_lengths(self) -> list[int] | None:
        """Give the number of samples of each shard, if they are all known."""
        ...

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:
        """Give the samples at these rows of a shard."""
        ...


class IndexedSource(Source):
    """The shards of a source that knows its lengths and reads any rows; give it to a `Stream` as `source=`."""

    def __init__(
        self, source: RowsByNumber, columns: tuple[str, ...] | None = None, *, is_nameless: bool = False
    ) -> None:
        lengths = source.shard_lengths()
        if lengths is None or not source.has_random_rows:
            raise ConfigError(
                f"{type(source).__name__} cannot read its rows in any order: shuffle it through a buffer of"
                " AsyncDataLoader, shuffle_buffer_size=, or stream its files with remote=, or what"
                " save_dataset(..., format='mds') writes"
            )
        super().__init__(lengths)
        self._source, self._names, self._columns = source, list(source.shard_names), columns
        self._is_nameless, self.code_digests = is_nameless, source.code_digests

    def open(self, shard: int) -> OpenShard:
        """Open a shard."""
        length = int(self.spans.starts[shard + 1] - self.spans.starts[shard])
        return OpenShard(_Reader(self._source, self._names[shard], length, self._columns))

    @property
    def content(self) -> str:
        """The fingerprint of what decides the order, if there is one."""
        return "" if self._is_nameless else self._source.order_fingerprint or ""

    def describe_shard(self, shard: int) -> str:
        """Give the name of the shard."""
        return self._names[shard]


class _Reader(FunctionReader):
    """Rows of one shard, many at a time."""

    def __init__(self, source: RowsByNumber, name: str, num_rows: int, columns: tuple[str, ...] | None) -> None:
        super().__init__(num_rows, lambda row: self.read([row])[0])
        self._source, self._name, self._columns = source, name, columns

    def read(self, rows: Rows) -> list[Sample]:
        """Give the samples at these rows, in this order."""
        samples = self._source.read_rows(self._name, [int(row) for row in rows])
        if self._columns is None:
            return samples
        try:
            return [{name: sample[name] for name in self._columns} for sample in samples]
        except KeyError as missing:
            raise MissingColumnError(f"a sample of {self._name} has no field {missing}", shard=self._name) from None
