"""`HuggingFaceShardedSource`: a dataset of the Hugging Face Hub: its files, or what the `datasets` library reads."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cache.proxied import open_pinned
from penstock.cachedir.layout import user_cache_dir
from penstock.errors import ConfigError, NoReadableFilesError, ObjectNotFoundError
from penstock.extras import require
from penstock.order.keys import hash_key
from penstock.scan.detect import kind_of_name
from penstock.scan.hub import find_in_repository
from penstock.scan.patterns import split_suffix
from penstock.sources.base import ShardedSource
from penstock.sources.files.base import FileShardedSource
from penstock.sources.files.columnar_sources import ArrowShardedSource, ParquetShardedSource
from penstock.sources.files.found import FoundFile, FoundFiles
from penstock.sources.files.text_sources import CsvShardedSource, JsonShardedSource, TextShardedSource
from penstock.sources.memory import HFDatasetShardedSource
from penstock.storage.base import check_key, open_store, redacted, resolve_store, safe_cause
from penstock.storage.hub import HubStore
from penstock.storage.hub_location import parse_hub_url
from penstock.storage.local import LocalStore
from penstock.threads import call_all
from penstock.units import checks_making

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from penstock.blocks.stage import OpenStage
    from penstock.reading.source import SourceFiles
    from penstock.sources.shard_info import ShardInfo
    from penstock.storage.base import StoreSettings
    from penstock.storage.retry import RetryPolicy
    from penstock.types import Sample


_AT_ONCE = 4


def copy_folder(cache_dir: str | os.PathLike[str] | None, dataset_name: str, commit: str) -> Path:
    """Return the folder that keeps the files of a commit: they never change."""
    root = Path(cache_dir).expanduser().absolute() if cache_dir is not None else user_cache_dir() / "hub"
    return root / "datasets" / check_key(dataset_name) / check_key(commit)


def bring_copies(files: FoundFiles, folder: Path) -> FoundFiles:
    """Download the files that are not there yet, whole; they keep their names."""
    here = LocalStore(folder)
    return FoundFiles(call_all([partial(_bring, file, here) for file in files], _AT_ONCE, "penstock-download"))


def _bring(file: FoundFile, here: LocalStore) -> FoundFile:
    key, path = check_key(file.info.key), here.root / file.info.key
    with suppress(ObjectNotFoundError):
        info = here.stat(key)
        if info.num_bytes == file.info.num_bytes:
            return FoundFile(file.url, here, info, str(path), origin=file.info)
    file.store.download(key, path)
    return FoundFile(file.url, here, here.stat(key), str(path), origin=file.info)


@dataclass(frozen=True, slots=True)
class HubPart:
    """A split of a subset of a dataset, at a commit."""

    dataset: str
    commit: str
    subset: str | None
    split: str

    @property
    def name(self) -> str:
        """What its shard is called."""
        return f"{self.dataset}{'' if self.subset is None else f'/{self.subset}'}:{self.split}"

    def fingerprint(self, columns: Sequence[str] | None) -> str:
        """Hash what it is: a commit never changes."""
        chosen = None if columns is None else list(columns)
        return f"hub-{hash_key(repr((self.dataset, self.commit, self.subset, self.split)), repr(chosen)):016x}"


def load_with_library(
    part: HubPart, settings: StoreSettings, cache_dir: str | os.PathLike[str] | None, *, streaming: bool
) -> Any:
    """Have the library open a split; it streams, or downloads and converts everything now."""
    library = require(
        "datasets", extra="datasets", purpose=f"{part.dataset} has no files that penstock reads itself: to read it"
    )
    endpoint = settings.options["endpoint"]
    if endpoint != library.config.HF_ENDPOINT.rstrip("/"):
        raise ConfigError(
            f"{part.dataset} is left to the datasets library, which asks {library.config.HF_ENDPOINT}: set the"
            f" environment variable HF_ENDPOINT to {endpoint} before Python starts"
        )
    try:
        return library.load_dataset(
            part.dataset,
            part.subset,
            split=part.split,
            streaming=streaming,
            cache_dir=cache_dir,
            revision=part.commit,
            token=settings.options["token"] or False,
        )
    except (library.exceptions.DatasetsError, ValueError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"{part.dataset} has no files that penstock reads itself, and the datasets library cannot read them:"
            f" {redacted(str(error))}",
            dataset=part.dataset,
        ) from safe_cause(error)


_JSON_SUFFIXES = (".json",)  # a file of settings as often as one of data: read only where there is nothing else


@checks_making
class HuggingFaceShardedSource(ShardedSource):
    """A dataset on the Hugging Face Hub: each of its files is a shard, read in order.

    The dataset's own configuration, or the names of its files, decide which files belong to a subset and a split. All
    of them are read in the commit that the revision stands for when the source is made. A dataset without any file that
    penstock reads is left to the `datasets` library (the extra `datasets`), and is one shard.

    Args:
        dataset_name: `"user/name"`; of `"name"` alone, the Hub says whose it is.
        split: The split.
        subset: The subset, if there are several.
        streaming: Read the files from the Hub as they are needed. With False, all of them are downloaded first.
        cache_dir: The folder for what is downloaded: by `streaming=False`, or by the `datasets` library. Files that are
            streamed are not kept. If not given, a folder of the user's cache, or that of the library.
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
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        revision: str | None = None,
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        if "/" not in dataset_name:
            hub = open_store(
                resolve_store(f"hf://datasets/{dataset_name}/{dataset_name}", storage_options), retry=retry
            )
            assert isinstance(hub, HubStore)  # noqa: S101  which is what such a URL names
            dataset_name = hub.full_name(dataset_name)
        url = f"hf://datasets/{dataset_name}" + ("" if revision is None else f"@{revision}")
        store, pinned, options = open_pinned(url, storage_options, retry=retry)
        commit = parse_hub_url(pinned)[2] or ""
        self._read: ShardedSource
        self._fingerprint: str | None
        try:
            infos = find_in_repository(store, subset, split, _JSON_SUFFIXES)
            files = FoundFiles(
                FoundFile(f"{url}/{info.key}", store, info, f"{pinned}/{info.key}") for info in infos if info.num_bytes
            )
            make = _reader_of(files, url, columns)
        except NoReadableFilesError:
            part = HubPart(dataset_name, commit, subset, split)
            dataset = load_with_library(part, resolve_store(pinned, options), cache_dir, streaming=streaming)
            self._read = HFDatasetShardedSource(
                dataset if columns is None else dataset.select_columns(list(columns)), part.name
            )
            self._fingerprint = part.fingerprint(columns)
        else:
            there = make(files)
            self._fingerprint = there.fingerprint  # that of copies tells their age
            if not streaming:
                there, storage_options = make(bring_copies(files, copy_folder(cache_dir, dataset_name, commit))), None
            there.use_options(storage_options)
            self._read = there
        self._input_sources = (self._read,)

    @property
    def file_source(self) -> FileShardedSource | None:
        """The source that reads the files; None if the `datasets` library reads them."""
        return self._read if isinstance(self._read, FileShardedSource) else None

    @property
    def shard_names(self) -> Sequence[str]:
        """The URLs of the files."""
        return self._read.shard_names

    @property
    def fingerprint(self) -> str | None:
        """A hash of the files and how they are read."""
        return self._fingerprint

    def shard_lengths(self) -> list[int] | None:
        """Return the rows of all files, if their format tells."""
        return self._read.shard_lengths()

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        """Return what the Hub tells of a file."""
        return self._read.get_shard_info(shard_name)

    def as_files(self) -> SourceFiles | None:
        """Name the files, if a stream can read them in place."""
        return self._read.as_files()

    def open_stage(self, shard_name: str, row: int = 0) -> OpenStage:
        """Open a file at a row."""
        return self._read.open_stage(shard_name, row)

    @property
    def has_random_rows(self) -> bool:
        """Whether any row can be read: of what the `datasets` library has downloaded."""
        return self._read.has_random_rows

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:
        """Return the samples at these rows, in this order."""
        return self._read.read_rows(shard_name, rows)


def _reader_of(
    files: FoundFiles, where: str, columns: Sequence[str] | None
) -> Callable[[FoundFiles], FileShardedSource]:
    """Choose the source for some files of one format."""
    kinds = {_kind_of(file.info.key) for file in files}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    if kind == "parquet":
        return partial(ParquetShardedSource, columns=columns)
    if kind == "arrow":
        return partial(ArrowShardedSource, columns=columns)
    if kind == "jsonl":
        return partial(JsonShardedSource, columns=columns)
    if kind in ("csv_file", "tsv_file"):
        return partial(CsvShardedSource, delimiter="," if kind == "csv_file" else "\t", columns=columns)
    if kind == "text" and columns is None:
        return TextShardedSource
    names = ", ".join(sorted({file.info.key for file in files})[:3])
    problem = f"{where} has no files in a format that can be read as a source: it has {names}"
    raise ConfigError(problem, url=where) if kind == "text" else NoReadableFilesError(problem, url=where)


def _kind_of(name: str) -> str | None:
    kind = kind_of_name(name)
    if kind is None:
        return "jsonl" if split_suffix(name)[0].endswith(_JSON_SUFFIXES) else None
    return kind.format
