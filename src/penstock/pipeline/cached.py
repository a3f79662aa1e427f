"""The cache stage: what a source gives, written once as MDS shards under its fingerprint, and read from there."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.data.local import LocalDataset
from penstock.errors import ConfigError
from penstock.pipeline.saving.save import save_dataset
from penstock.sources.base import ShardedSource, ShardInfo
from penstock.sources.memory import MemoryShardedSource
from penstock.storage.base import url_scheme

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.pipeline.config import CacheStageConfig
    from penstock.types import Sample

_ROWS_AT_ONCE = 256
_SHARD_SIZE = "64MB"
_CODECS = {"none": None, "gzip": "gz", "zstd": "zstd"}


def cache_source(source: ShardedSource, config: CacheStageConfig, folder: str | None = None) -> ShardedSource:
    """Give a source of the same samples that are kept, in memory or in files; files that are there are used."""
    if not config.enabled:
        return source
    if source.is_endless:
        raise ConfigError("a source that never ends cannot be cached: cache before you mix")
    if config.cache_type == "memory":
        return MemoryShardedSource(
            list(source), num_shards=max(1, int(source.num_shards)), fingerprint=source.fingerprint
        )
    fingerprint = source.fingerprint
    if fingerprint is None:
        raise ConfigError(
            "the source has no fingerprint, so nobody could tell whether cached samples are still right: functions such"
            " as format_callback have none. Cache in memory, cache_type='memory', use transforms with settings(), or"
            " write the samples with save_dataset"
        )
    root = folder or config.cache_dir
    if url_scheme(root) not in (None, "file"):
        raise ConfigError("cache_dir= is a folder of this machine: to keep samples in a store, use save_dataset")
    if config.compression not in _CODECS:
        raise ConfigError(f"compression={config.compression!r} is not there for cached samples: use none, gzip or zstd")
    place = Path(root).expanduser() / hashlib.sha256(fingerprint.encode()).hexdigest()[:32]
    save_dataset(
        source, place, "mds", _SHARD_SIZE, compression=_CODECS[config.compression], resume=True, waits_for_others=True
    )
    return CachedShardedSource(place, fingerprint)


def hold_in_memory(source: ShardedSource) -> ShardedSource:
    """Read all samples of a source now, once."""
    shards = max(1, int(source.num_shards))
    return MemoryShardedSource(list(source), num_shards=shards, fingerprint=source.fingerprint)


class CachedShardedSource(ShardedSource):
    """The samples of MDS shards in a folder, in order or by row."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder, self._fingerprint = folder, fingerprint
        index = LocalDataset(folder).index
        self._names = [shard.name for shard in index.shards]
        self._lengths = [int(length) for length in index.lengths]
        self._firsts = [sum(self._lengths[:number]) for number in range(len(self._lengths))]
        self._own = threading.local()  # a dataset is for one thread

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards."""
        return self._names

    @property
    def fingerprint(self) -> str:
        """That of the source whose samples these are, with how they are cut."""
        return f"{self._fingerprint}-cached"

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Give the number of rows of a shard."""
        number = self.shard_number(shard_name)
        return ShardInfo(number, shard_name, self._lengths[number])

    @property
    def has_random_rows(self) -> bool:
        """They can be read by number."""
        return True

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:
        """Give the samples at these rows of a shard."""
        first = self._firsts[self.shard_number(shard_name)]
        return self._dataset()[[first + int(row) for row in rows]]

    def _read_chunks(self, shard_name: str, row: int) -> Iterator[list[Sample]]:
        length = self._lengths[self.shard_number(shard_name)]
        for begin in range(row, length, _ROWS_AT_ONCE):
            yield self.read_rows(shard_name, range(begin, min(begin + _ROWS_AT_ONCE, length)))

    def _dataset(self) -> LocalDataset:
        if not hasattr(self._own, "dataset"):
            self._own.dataset = LocalDataset(self._folder)
        dataset: LocalDataset = self._own.dataset
        return dataset

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_own"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own = threading.local()
