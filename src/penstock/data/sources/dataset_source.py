"""A `StreamingDataset` as a `ShardedSource`: its samples as they are stored, shard by shard."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.reading.kept_rows import KeptSource
from penstock.reading.local_folder import LocalFolder
from penstock.reading.schedule import rows_at_once
from penstock.reading.source import JoinedSources, ShardRange, fetched_by, mean_sizes
from penstock.sources.base import ShardedSource
from penstock.sources.shard_info import ShardInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.data.open_streams import OpenedStream, OpenedStreams
    from penstock.data.pass_readers import PassReaders
    from penstock.data.stream import DatasetSettings, Stream
    from penstock.reading.source import CodeDigest, Source
    from penstock.reading.transforms import SampleTransforms
    from penstock.types import Int64Array, Sample


class ReadableDataset(Protocol):
    """What is asked of a dataset here."""

    readers: PassReaders
    _opened: OpenedStreams
    _settings: DatasetSettings
    _transforms: SampleTransforms | None

    @property
    def _is_overridden(self) -> bool: ...

    def __getitem__(self, key: Any) -> Any: ...
    def apply_transforms(self, ids: Sequence[int] | Int64Array, samples: list[Any]) -> list[Any]:
        """Return what the transforms make of samples that were read by number."""
        ...


class ShardNames:
    """The shards of a dataset by name: as the index names them, after the name of their stream if there are several."""

    def __init__(self, opened: OpenedStreams, streams: Sequence[Stream]) -> None:
        self.opened = opened
        self._labels = [
            "" if len(streams) == 1 else f"{number if stream.name is None else stream.name}/"
            for number, stream in enumerate(streams)
        ]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each shard, in order."""
        numbers: dict[str, int] = {}
        opened = self.opened
        for label, each in zip(self._labels, opened.streams, strict=True):
            for shard in range(each.shards.num_shards):
                number, files = len(numbers), each.files
                plain = opened.source.describe_shard(number) if files is None else files.index.shards[shard].name
                name, count = f"{label}{plain}", 1
                while name in numbers:
                    count += 1
                    name = f"{label}{plain}#{count}"
                numbers[name] = number
        return numbers


class DatasetShardedSource(ShardedSource):
    """All samples of a dataset once, in the order in which they are stored; weights and shuffling do not count here.

    Samples are those that the dataset gives by number, its transforms applied.
    """

    def __init__(self, dataset: ReadableDataset, names: ShardNames) -> None:
        self._dataset, self._names = dataset, names
        self._starts: Int64Array = dataset._opened.source.spans.starts
        self.code_digests = [
            digest for each in dataset._opened.streams if each.own is not None for digest in each.own.code_digests
        ]

    @cached_property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards."""
        return list(self._names.numbers)

    def shard_number(self, shard_name: str) -> int:
        """Return the place of a shard among all; an unknown name is an error."""
        number = self._names.numbers.get(shard_name)
        return super().shard_number(shard_name) if number is None else number

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return the rows and the stored bytes of a shard."""
        number = self.shard_number(shard_name)
        source = self._dataset._opened.source
        num_bytes = int(source.sizes[number]) or None
        return ShardInfo(number, shard_name, self._length(number), num_bytes, source.describe_shard(number))

    def shard_lengths(self) -> list[int]:
        """Return the rows of all shards."""
        lengths: list[int] = np.diff(self._starts).tolist()
        return lengths

    @property
    def has_random_rows(self) -> bool:
        """A dataset reads any row."""
        return True

    @property
    def order_fingerprint(self) -> str | None:
        """A hash of the data and of how they are read; None if functions of yours or unknown sources take part."""
        dataset = self._dataset
        opened = dataset._opened
        versions = [_version_of(opened, stream) for stream in opened.streams]
        kept = [None if stream.kept is None else stream.kept.digest for stream in opened.streams]
        if dataset._transforms is not None or dataset._is_overridden or not all(versions):
            return None
        told = repr((versions, dataset._settings.decoding, self.shard_lengths(), *filter(None, kept)))
        return f"dataset-{hashlib.sha256(told.encode()).hexdigest()[:32]}"

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:
        """Return the samples at these rows of a shard, in this order."""
        first = int(self._starts[self.shard_number(shard_name)])
        return self._read(first + np.asarray(rows, np.int64))

    def as_stream_source(self, columns: tuple[str, ...] | None = None, limit_bytes: int | None = None) -> Source:
        """Return the shards of the dataset, read and fetched ahead as it does itself."""
        fingerprint = self.order_fingerprint
        source = self._dataset._opened.source
        if self.fingerprint is None or fingerprint is None or columns is not None or isinstance(source, KeptSource):
            return super().as_stream_source(columns, limit_bytes)
        return _StreamOfDataset(source, fingerprint, self.code_digests)

    def _read_chunks(self, shard_name: str, row: int) -> Iterator[list[Sample]]:
        number = self.shard_number(shard_name)
        source = self._dataset._opened.source
        at_once = rows_at_once(mean_sizes(source)[0])
        fetched = fetched_by(source)
        if fetched is not None and row < self._length(number):  # the next shard comes while this one is read
            ahead = np.arange(number, min(number + 2, len(self._starts) - 1))
            fetched.expect(ahead, ahead - number)
        first, end = int(self._starts[number]), int(self._starts[number + 1])
        for begin in range(first + row, end, at_once):
            yield self._read(np.arange(begin, min(begin + at_once, end)))

    def _read(self, ids: Int64Array) -> list[Sample]:
        dataset = self._dataset
        if dataset._is_overridden:
            made: list[Sample] = dataset[ids]
            return made
        with dataset.readers.here.borrow_reader() as reader, reader.counts.reading(ids):
            samples = reader.read(ids).samples()
        return dataset.apply_transforms(ids, samples)

    def _length(self, number: int) -> int:
        return int(self._starts[number + 1] - self._starts[number])


class _StreamOfDataset(JoinedSources):
    """The shards of a dataset that is a stream of another one."""

    content = ""  # the fingerprint of the dataset

    def __init__(self, source: Source, content: str, code_digests: Sequence[CodeDigest]) -> None:
        super().__init__([ShardRange(source, 0, len(source.spans))])
        self.content, self.code_digests = content, code_digests


def _version_of(opened: OpenedStreams, stream: OpenedStream) -> str:
    """Distinguish the data of a stream from others, also from earlier ones in the same place; "" if nothing does."""
    files = stream.files
    if files is None:
        return stream.shards.source.content
    if files.cached is not None and opened.cache is not None:
        edition = opened.cache.indexes[files.cached]
        return "" if edition is None else edition[0]
    return files.in_place.version if isinstance(files.in_place, LocalFolder) else ""
