"""`create_source`: the source that a dataset's settings describe."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.scan.detect import kind_of_name
from penstock.scan.patterns import is_list, split_suffix
from penstock.sources.composite import LimitedShardedSource
from penstock.sources.files.columnar_sources import ArrowShardedSource, ParquetShardedSource
from penstock.sources.files.found import FoundFiles, find_files
from penstock.sources.files.hub import HuggingFaceShardedSource
from penstock.sources.files.text_sources import CsvShardedSource, JsonShardedSource, TextShardedSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.pipeline.config import DatasetConfig
    from penstock.sources.base import ShardedSource
    from penstock.storage.retry import RetryPolicy

_TYPES = {
    "parquet": "parquet",
    "arrow": "arrow",
    "jsonl": "json",
    "csv_file": "csv",
    "tsv_file": "tsv",
    "text": "txt",
}


def create_source(
    config: DatasetConfig, storage_options: Mapping[str, Any] | None = None, *, retry: RetryPolicy | None = None
) -> ShardedSource:
    """Make the source that settings describe: of their `type`, or of the one that the names of the files tell.

    Args:
        config: The settings of a dataset. `num_rows` limits it to its first rows.
        storage_options: Credentials and settings of stores, where the dataset has none of its own.
        retry: How often and how patiently stores are asked again, if not in the usual way.
    """
    options = config.storage_options if config.storage_options is not None else storage_options
    make = _from_hub if config.type in ("huggingface", "hf") else _from_files
    source = make(config, options, retry)
    return source if config.num_rows is None else LimitedShardedSource(source, config.num_rows)


def _from_hub(config: DatasetConfig, options: Mapping[str, Any] | None, retry: RetryPolicy | None) -> ShardedSource:
    if is_list(config.data_files):
        raise ConfigError("data_files= of a dataset of the Hub is its name, not a list")
    name = os.fspath(config.data_files)  # type: ignore[arg-type]
    return HuggingFaceShardedSource(name, config.split, config.dataset_split_name, storage_options=options, retry=retry)


def _from_files(config: DatasetConfig, options: Mapping[str, Any] | None, retry: RetryPolicy | None) -> ShardedSource:
    if config.dataset_split_name is not None:
        raise ConfigError("dataset_split_name= is the subset of a dataset of the Hub: set type='huggingface' too")
    files = FoundFiles(find_files(config.data_files, options, retry=retry))
    kind = config.type or _type_of(files)
    if kind == "parquet":
        return ParquetShardedSource(files)
    if kind == "arrow":
        return ArrowShardedSource(files)
    if kind in ("csv", "tsv"):
        return CsvShardedSource(files, delimiter="," if kind == "csv" else "\t")
    if kind == "txt":
        return TextShardedSource(files, text_field=config.content_field)
    return JsonShardedSource(files)


def _type_of(files: FoundFiles) -> str:
    found = {}
    for file in files:
        kind = kind_of_name(file.info.key)
        is_json = split_suffix(file.info.key)[0].endswith(".json")
        found["json" if is_json else _TYPES.get("" if kind is None else kind.format, "")] = file.url
    if len(found) > 1:
        raise ConfigError(
            f"the files are of several types, such as {' and '.join(sorted(found.values())[:2])}: set type="
        )
    [(name, url)] = found.items()
    if not name:
        raise ConfigError(f"the name of {url} does not tell its type: set type=")
    return name
