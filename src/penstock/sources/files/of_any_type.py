"""Files as the source of their type, which their names tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.scan.detect import kind_of_name
from penstock.scan.patterns import split_suffix
from penstock.sources.files.columnar_sources import ArrowShardedSource, ParquetShardedSource
from penstock.sources.files.found import FoundFiles, find_files
from penstock.sources.files.text_sources import CsvShardedSource, JsonShardedSource, TextShardedSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.scan.patterns import Given
    from penstock.sources.files.base import FileShardedSource
    from penstock.storage.retry import RetryPolicy

_TYPES = {
    "parquet": "parquet",
    "arrow": "arrow",
    "jsonl": "json",
    "csv_file": "csv",
    "tsv_file": "tsv",
    "text": "txt",
}


def open_files(
    data_files: Given,
    file_type: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    retry: RetryPolicy | None = None,
    text_field: str = "text",
) -> FileShardedSource:
    """Return the rows of files of one type: parquet, arrow, json, csv, tsv or txt; None: the one that names tell."""
    files = FoundFiles(find_files(data_files, storage_options, retry=retry))
    kind = file_type or _type_of(files)
    if kind == "parquet":
        return ParquetShardedSource(files)
    if kind == "arrow":
        return ArrowShardedSource(files)
    if kind in ("csv", "tsv"):
        return CsvShardedSource(files, delimiter="," if kind == "csv" else "\t")
    if kind == "txt":
        return TextShardedSource(files, text_field=text_field)
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
