"""What sources of files share: names, what stores tell of them, fingerprints."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.blocks.stage import check_row
from penstock.errors import ConfigError
from penstock.order.keys import hash_key
from penstock.reading.source import SourceFiles
from penstock.scan.patterns import find_source, has_magic, has_magic_part
from penstock.sources.base import ShardedSource
from penstock.sources.files.found import (
    FoundFile,
    FoundFiles,
    HiddenOptions,
    find_files,
    fingerprint_of,
    same_place,
    unique_names,
)
from penstock.sources.shard_info import FileStage, FilesVersion, ShardInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.blocks.stage import State
    from penstock.scan.patterns import Given
    from penstock.sources.shard_info import FileBlocks


def as_names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Take the names of columns that a user wants, or none."""
    if isinstance(columns, str):
        raise ConfigError(f"columns={columns!r} is a string: pass a list of column names")
    return None if columns is None else tuple(columns)


class FileShardedSource(ShardedSource):
    """Files, each of them a shard. They are read in order, in this process, without a cache."""

    makes_new_samples = True
    format: str | None = None  # of the files that are looked for in folders

    def __init__(self, data_files: Given | FoundFiles, storage_options: Mapping[str, Any] | None = None) -> None:
        self._files: list[FoundFile] = (
            list(data_files)
            if isinstance(data_files, FoundFiles)
            else find_files(data_files, storage_options, self.format)
        )
        self._given_options = HiddenOptions(storage_options)
        self._names = unique_names(self._files)
        self._numbers = {name: number for number, name in enumerate(self._names)}

    def use_options(self, storage_options: Mapping[str, Any] | None) -> None:
        """Announce which options the files were found with, if these files were given."""
        self._given_options = HiddenOptions(storage_options)

    @property
    def files(self) -> Sequence[FoundFile]:
        """The files."""
        return tuple(self._files)

    @property
    def reading(self) -> tuple[object, ...]:
        """All that samples depend on beside the files."""
        return self._settings()

    @property
    def shard_names(self) -> Sequence[str]:
        """The files, by the paths or URLs that they were named with or found under."""
        return self._names

    def shard_number(self, shard_name: str) -> int:
        """Return the place of a file among all; any way of writing its path will do."""
        number = self._numbers.get(shard_name)
        return self._places.get(same_place(shard_name), -1) if number is None else number

    @cached_property
    def _places(self) -> dict[str, int]:
        return {same_place(name): number for number, name in reversed(list(enumerate(self._names)))}

    @property
    def fingerprint(self) -> str | None:
        """A hash of names, sizes, version tags and times of all files, and of how they are read."""
        return fingerprint_of(self._files, type(self).__name__, *self._settings())

    @cached_property
    def files_version(self) -> FilesVersion:
        """Sizes and versions of all files, wherever they are."""
        told = repr([file.version[1:] for file in self._files])
        newest = max(((file.origin or file.info).modified_ns or 0, file.version.name) for file in self._files)
        return FilesVersion(f"{hash_key(told):016x}", newest)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return what the store tells of a file."""
        number = self._number(shard_name)
        file = self._files[number]
        return ShardInfo(
            number, self._names[number], self._num_rows(number), file.info.num_bytes, file.url, file.info.etag
        )

    def open_stage(self, shard_name: str, row: int = 0) -> FileStage:
        """Open a file at a row."""
        number = self._number(shard_name)
        file = self._files[number]
        return FileStage(self._open(number, check_row(file.url, row, None)), file.version)

    def shard_cuts(self, shard_name: str, num_bytes: int) -> list[State]:  # noqa: ARG002
        """Find where a file can be cut into pieces of about so many stored bytes, for several processes to read.

        Gives positions for `load_state_dict` of an iterator over the file, from its first row on, each with its `row`.
        Nothing, if a file must be read from its beginning, or if some rows are no samples.
        """
        return []

    def _number(self, shard_name: str) -> int:
        number = self.shard_number(shard_name)
        if number < 0:
            ShardedSource.shard_number(self, shard_name)  # which says what there is
            raise ConfigError(f"the source has no shard {shard_name!r}")
        return number

    def as_files(self) -> SourceFiles | None:
        """Name the files, if a stream can read them in place: each once, in one store, none with a name like a glob."""
        urls = tuple(file.address for file in self._files)
        about = self._in_place()
        is_plain = len(set(urls)) == len(urls) and not any(map(_may_be_glob, self._files))
        if about is None or not is_plain or not _are_in_one_place(urls):
            return None
        options = self._given_options.values
        if options is not None and any(file.pinned_url for file in self._files):
            options = {name: value for name, value in options.items() if name != "revision"}  # the URLs name it
        queries = {file.address: file.query for file in self._files if file.query}
        return SourceFiles(urls=urls, storage_options=options, queries=queries, **about)

    def _in_place(self) -> dict[str, Any] | None:
        """Describe how a stream has to read the files to give the same samples; None if no stream does."""
        return None

    def _num_rows(self, number: int) -> int | None:  # noqa: ARG002
        """Count the rows of a file, if that takes no reading of it."""
        return None

    def _settings(self) -> tuple[object, ...]:
        """Return all that samples depend on beside the files."""
        return ()

    @abstractmethod
    def _open(self, number: int, row: int) -> FileBlocks:
        """Open a file at a row."""


def _may_be_glob(file: FoundFile) -> bool:
    return has_magic(file.address) or has_magic_part(file.info.key, file.address)


def _are_in_one_place(urls: Sequence[str]) -> bool:
    try:
        find_source(urls, ())
    except ConfigError:
        return False
    return True
