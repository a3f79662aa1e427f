"""`HuggingFaceShardedSource`: a dataset of the Hugging Face Hub, by its files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cache.proxied import open_pinned
from penstock.errors import ConfigError
from penstock.scan.detect import kind_of_name
from penstock.scan.listing import find_in_repository
from penstock.sources.base import ShardedSource
from penstock.sources.files.columnar_sources import ArrowShardedSource, ParquetShardedSource
from penstock.sources.files.found import FoundFile, FoundFiles
from penstock.sources.files.text_sources import CsvShardedSource, JsonShardedSource, TextShardedSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.reading.source import SourceFiles
    from penstock.sources.files.base import FileShardedSource
    from penstock.sources.iterators import SampleIterator
    from penstock.sources.shard_info import ShardInfo
    from penstock.storage.retry import RetryPolicy


class HuggingFaceShardedSource(ShardedSource):
    """A dataset on the Hugging Face Hub: each of its files is a shard, read in order from the Hub.

    The dataset's own configuration, or the names of its files, decide which files belong to a subset and a split. All
    of them are read in the commit that the revision stands for when the source is made.

    Args:
        dataset_name: `"user/name"`.
        split: The split.
        subset: The subset, if there are several.
        streaming: Files are always streamed. To keep them on disk, give `"hf://datasets/user/name"` to a
            `StreamingDataset`.
        revision: A branch, a tag or a commit.
        columns: Read these columns only.
        storage_options: The token, and other settings of the Hub.
        retry: How often and how patiently the Hub is asked again, if not in the usual way.
    """

    def __init__(
        self,
        dataset_name: str,
        split: str = "train",
        subset: str | None = None,
        streaming: bool = True,
        cache_dir: str | None = None,
        *,
        revision: str | None = None,
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        url = f"hf://datasets/{dataset_name}" + ("" if revision is None else f"@{revision}")
        if not streaming or cache_dir is not None:
            raise ConfigError(
                f"this source reads files from the Hub as it goes and keeps none: leave out streaming=False and"
                f" cache_dir=, or use StreamingDataset(remote={url!r}, local=...)"
            )
        store, pinned, _ = open_pinned(url, storage_options, retry=retry)
        infos = find_in_repository(store, subset, split)
        files = FoundFiles(
            FoundFile(f"{url}/{info.key}", store, info, f"{pinned}/{info.key}") for info in infos if info.num_bytes
        )
        self._files = _source_of(files, url, columns)
        self._files.use_options(storage_options)

    @property
    def file_source(self) -> FileShardedSource:
        """The source that reads the files."""
        return self._files

    @property
    def shard_names(self) -> Sequence[str]:
        """The URLs of the files."""
        return self._files.shard_names

    @property
    def fingerprint(self) -> str | None:
        """A hash of the files and how they are read."""
        return self._files.fingerprint

    def shard_lengths(self) -> list[int] | None:
        """Return the rows of all files, if their format tells."""
        return self._files.shard_lengths()

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        """Return what the Hub tells of a file."""
        return self._files.get_shard_info(shard_name)

    def as_files(self) -> SourceFiles | None:
        """Name the files, if a stream can read them in place."""
        return self._files.as_files()

    def open_shard_at_row(self, shard_name: str, row: int = 0) -> SampleIterator:
        """Open a file at a row."""
        return self._files.open_shard_at_row(shard_name, row)


def _source_of(files: FoundFiles, where: str, columns: Sequence[str] | None) -> FileShardedSource:
    """Choose the source for some files of one format."""
    kinds = {None if kind is None else kind.format for kind in (kind_of_name(file.info.key) for file in files)}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    if kind == "parquet":
        return ParquetShardedSource(files, columns=columns)
    if kind == "arrow":
        return ArrowShardedSource(files, columns=columns)
    if kind == "jsonl":
        return JsonShardedSource(files, columns=columns)
    if kind in ("csv_file", "tsv_file"):
        return CsvShardedSource(files, delimiter="," if kind == "csv_file" else "\t", columns=columns)
    if kind == "text" and columns is None:
        return TextShardedSource(files)
    names = ", ".join(sorted({file.info.key for file in files})[:3])
    raise ConfigError(f"{where} has no files in a format that can be read as a source: it has {names}", url=where)
