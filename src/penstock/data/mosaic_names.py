"""What code written for MosaicML Streaming reads from a dataset, under the names that it has there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast, overload

import numpy as np

from penstock.data.open_streams import OpenedDataset
from penstock.errors import SampleIndexError
from penstock.index.mosaic_json import dump_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.data.run_state import RunState
    from penstock.data.stream import DatasetSettings
    from penstock.index.model import Index
    from penstock.index.shards import FileInfo, IndexedShard
    from penstock.order.id_spans import IdSpans
    from penstock.types import Int64Array


T = TypeVar("T")


class ShardFile(NamedTuple):
    """A file of a shard: its name below the dataset's folder, its size, its digests."""

    basename: str
    bytes: int
    hashes: Mapping[str, str]


class Shard:
    """What the index says of a shard: `samples`, `compression`, `raw_data`, `zip_data`, `column_names` and so on."""

    def __init__(self, info: IndexedShard) -> None:
        self.samples = info.num_samples
        self._parts = info.parts
        self._layout = info.layout

    def __len__(self) -> int:
        return self.samples

    @property
    def size(self) -> int:
        """The number of samples."""
        return self.samples

    @property
    def raw_data(self) -> ShardFile:
        """The file of the samples as it is read."""
        return _describe(self._parts[0].raw)

    @property
    def zip_data(self) -> ShardFile | None:
        """The file of the samples as it is stored, if it is compressed."""
        packed = self._parts[0].packed
        return None if packed is None else _describe(packed)

    def get_raw_size(self) -> int:
        """Count the bytes of its files as they are read."""
        return sum(part.raw.num_bytes for part in self._parts)

    def get_zip_size(self) -> int | None:
        """Count the bytes of its files as they are stored, if they are compressed."""
        packed = [part.packed.num_bytes for part in self._parts if part.packed is not None]
        return sum(packed) if packed else None

    def get_max_size(self) -> int:
        """Count the bytes of its files in both forms."""
        return self.get_raw_size() + (self.get_zip_size() or 0)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            settings = dump_layout(self._layout)
            if name in settings:
                return settings[name]
        raise AttributeError(f"a shard has no attribute {name!r}")


def _describe(file: FileInfo) -> ShardFile:
    return ShardFile(file.basename, file.num_bytes, file.digests)


class Shards(Sequence[Shard]):
    """The shards of some indexes, end to end; each is looked up when it is asked for."""

    def __init__(self, indexes: Iterable[Index]) -> None:
        self._shards = [index.shards for index in indexes]
        self._ends = [*accumulate(map(len, self._shards))]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, at: int) -> Shard: ...
    @overload
    def __getitem__(self, at: slice) -> list[Shard]: ...
    def __getitem__(self, at: int | slice) -> Shard | list[Shard]:
        if isinstance(at, slice):
            return [self[number] for number in range(len(self))[at]]
        if not -len(self) <= at < len(self):
            raise SampleIndexError(f"shard {at} is out of range: there are {len(self)} shards")
        number = at % len(self)
        stream = bisect_right(self._ends, number)
        first = self._ends[stream] - len(self._shards[stream])
        return Shard(self._shards[stream][number - first])


class Spanner:
    """Finds the shard of a sample and its place in there: `shard, row = spanner[sample]`."""

    def __init__(self, spans: IdSpans) -> None:
        self._spans = spans

    def __getitem__(self, sample_id: int) -> tuple[int, int]:
        if not 0 <= sample_id < self._spans.num_samples:
            raise SampleIndexError(f"Invalid sample index {sample_id}: there are {self._spans.num_samples} samples")
        shard = self._spans.shard_of(sample_id)
        return shard, int(sample_id - self._spans.starts[shard])


class _Setting(Generic[T]):
    """A setting of a dataset, read where it is kept."""

    def __init__(self, place: str) -> None:
        self._get = attrgetter(f"_settings.{place}")

    def __get__(self, dataset: MosaicNames | None, kind: type) -> T:
        return cast("T", self if dataset is None else self._get(dataset))


class MosaicNames(OpenedDataset):
    """The settings, counts and shards of a dataset, under the names of MosaicML Streaming."""

    run: RunState
    _settings: DatasetSettings

    def __len__(self) -> int:
        raise NotImplementedError

    # --- Settings -----------------------------------------------------------------------------------------------

    shuffle = _Setting[bool]("order.shuffle")  # whether samples are shuffled
    shuffle_block_size = _Setting[int | None]("order.shuffle_block_size")  # how many each lane shuffles among, if said
    batching_method = _Setting[str]("order.batching_method")  # how batches are made of several streams
    sampling_method = _Setting[str]("order.sampling_method")  # how some samples of a stream are chosen
    sampling_granularity = _Setting[int]("order.sampling_granularity")  # how many samples are chosen in a row
    partition_algo = _Setting[str | None]("order.partition_algo")  # how samples are dealt to nodes, if you said it
    allow_unsafe_types = _Setting[bool]("decoding.allow_unsafe_types")  # whether `pkl` columns are read

    @property
    def shuffle_algo(self) -> str | None:
        """The algorithm of MosaicML's that the order follows; None: it is one of our own."""
        return self.run.describe_order().get("shuffle_algo")

    @property
    def shuffle_seed(self) -> int:
        """Seed of the order, of a loaded state if there is one."""
        seed: int = self.run.describe_order()["shuffle_seed"]
        return seed

    @property
    def num_canonical_nodes(self) -> int:
        """The lanes of the order, of a loaded state if there is one."""
        lanes: int = self.run.describe_order()["num_canonical_nodes"]
        return lanes

    @property
    def initial_physical_nodes(self) -> int | None:
        """The number of nodes on which the run began."""
        return self.run.describe_order().get("initial_physical_nodes")

    # --- Counts -------------------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """The number of samples that this rank gets in an epoch."""
        return len(self)

    @property
    def num_streams(self) -> int:
        """The number of streams."""
        return len(self.streams)

    @property
    def samples_per_shard(self) -> Int64Array:
        """The number of samples of each shard."""
        return np.concatenate([each.lengths for each in self._opened.streams])

    @property
    def sample_offset_per_shard(self) -> Int64Array:
        """The first sample of each shard."""
        return self._opened.source.spans.starts[:-1]

    @property
    def sample_offset_per_stream(self) -> Int64Array:
        """The first sample of each stream."""
        return self._opened.first_ids[:-1]

    @property
    def shards_per_stream(self) -> Int64Array:
        """The number of shards of each stream."""
        return np.array([each.shards.num_shards for each in self._opened.streams], np.int64)

    @property
    def shard_offset_per_stream(self) -> Int64Array:
        """The first shard of each stream."""
        return np.cumsum(self.shards_per_stream) - self.shards_per_stream

    @property
    def stream_per_shard(self) -> Int64Array:
        """The stream of each shard."""
        return np.repeat(np.arange(self.num_streams), self.shards_per_stream)

    # --- Shards -------------------------------------------------------------------------------------------------

    @property
    def shards(self) -> Shards:
        """What the indexes say of each shard; streams with a source of their own have none."""
        return Shards(each.files.index for each in self._opened.streams if each.files is not None)

    @property
    def spanner(self) -> Spanner:
        """Finds the shard of a sample."""
        return Spanner(self._opened.source.spans)

    @property
    def cache_usage(self) -> int:
        """Count the bytes on this node of what was fetched for this dataset."""
        from penstock.cache.contents import read_contents  # seldom needed, and a tenth of what loading penstock takes

        cache = self._opened.cache
        directories = set() if cache is None else {stream.directory for stream in cache.streams}
        return sum(read_contents(directory).num_bytes for directory in directories if directory.exists())

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:  # noqa: ARG002
        """Fetch a shard, if it is not here yet, and wait for it."""
        for cache, stream, shards in self._opened.cached_shards(self._one_shard(shard_id)):
            cache.warm(stream, shards)

    def download_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Fetch a shard, if it is not here yet: the old name of `prepare_shard`."""
        self.prepare_shard(shard_id, blocking)

    def evict_shard(self, shard_id: int) -> None:
        """Remove a shard from the cache now. What lies in a folder of yours stays."""
        from penstock.cache.cleanup import evict  # as above

        self._close_shards()
        for cache, stream, shards in self._opened.cached_shards(self._one_shard(shard_id)):
            files = next(each.files for each in self._opened.streams if each.files and each.files.cached == stream)
            for number in shards:
                evict(cache.streams[stream].directory, files.index.shards[number].name)

    def _one_shard(self, shard_id: int) -> Int64Array:
        if not 0 <= shard_id < self.num_shards:
            raise SampleIndexError(f"shard {shard_id} is out of range: the dataset has {self.num_shards} shards")
        return np.array([shard_id], np.int64)

    def _close_shards(self) -> None:
        raise NotImplementedError
