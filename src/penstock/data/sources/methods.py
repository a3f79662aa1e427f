"""What every `ShardedSource` has, for a `StreamingDataset`: shards by name, and transforms that give sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.sources.fluent_verbs import FluentVerbs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.data.open_streams import OpenedStreams
    from penstock.data.sources.dataset_source import DatasetShardedSource, ShardNames
    from penstock.data.stream import Stream
    from penstock.reading.source import Source
    from penstock.sources.base import TransformedShardedSource
    from penstock.sources.iterators import SampleIterator
    from penstock.sources.shard_info import ShardCount, ShardInfo
    from penstock.sources.transforming import WorkerKind
    from penstock.sources.transforms import AnySourceTransform


class SourceMethods(FluentVerbs["TransformedShardedSource"]):
    """A dataset can be given wherever a source can, and has the methods of one."""

    streams: list[Stream]
    _opened: OpenedStreams
    _shard_names: ShardNames | None = None

    def as_source(self) -> DatasetShardedSource:
        """Return the samples as a `ShardedSource`: all of them once, as they are stored, with transforms applied.

        Weights, shuffling and ranks do not count there. Whatever takes a source takes the dataset itself, too.
        """
        from penstock.data.sources.dataset_source import DatasetShardedSource, ShardNames  # seldom needed

        if self._shard_names is None or self._shard_names.opened is not self._opened:
            self._shard_names = ShardNames(self._opened, self.streams)
        return DatasetShardedSource(self, self._shard_names)  # type: ignore[arg-type]

    def as_stream_source(self, columns: tuple[str, ...] | None = None, limit_bytes: int | None = None) -> Source:
        """Return this dataset as a stream of another one: `Stream(source=...)` calls it."""
        return self.as_source().as_stream_source(columns, limit_bytes)

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards, which `open_shard` takes."""
        return self.as_source().shard_names

    @property
    def num_shards(self) -> ShardCount:
        """The number of shards of all streams; may also be called."""
        from penstock.sources.shard_info import ShardCount

        return ShardCount(len(self._opened.source.spans))

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return what is known of a shard."""
        return self.as_source().get_shard_info(shard_name)

    def open_shard(self, shard_name: str) -> SampleIterator:
        """Open a shard at its beginning."""
        return self.as_source().open_shard(shard_name)

    def open_shard_at_row(self, shard_name: str, row: int = 0) -> SampleIterator:
        """Open a shard at a row."""
        return self.as_source().open_shard_at_row(shard_name, row)

    def iter_shards(
        self, shard_indices: Sequence[int] | None = None, start_shard: int = 0, start_row: int = 0
    ) -> SampleIterator:
        """Read shards one after the other, as they are stored."""
        return self.as_source().iter_shards(shard_indices, start_shard, start_row)

    def transform(
        self, transform: AnySourceTransform, *, num_workers: int = 0, worker_kind: WorkerKind = "thread"
    ) -> TransformedShardedSource:
        """Apply a transform, or several joined with `>>`, to each sample as it is read."""
        return self.as_source().transform(transform, num_workers=num_workers, worker_kind=worker_kind)
