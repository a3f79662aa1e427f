"""Which streams are files of other programs, and what is asked of the fetcher for them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.cache.proxied import open_proxied
from penstock.errors import ConfigError, StoreError
from penstock.files import os_errors
from penstock.formats.base import get_format
from penstock.formats.files import get_file_format
from penstock.index.paths import INDEX_NAME
from penstock.scan.detect import format_of, known_suffixes
from penstock.scan.patterns import NamedFiles, find_source, has_magic, is_file_name
from penstock.storage.base import url_scheme
from penstock.storage.hub_location import parse_hub_url
from penstock.storage.local import LocalStore
from penstock.storage.retry import RetryPolicy
from penstock.wire.settings import FilesRequest

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.data.stream import Stream
    from penstock.index.model import Index

MDS = "mds"
_SHARDS_LOOKED_AT = 8


@dataclass(frozen=True, slots=True)
class FilesOfStream:
    """Where the files of a stream are, and what to look for there."""

    root: str
    request: FilesRequest

    @property
    def folder(self) -> Path | None:
        """The root, if it is a folder of this machine."""
        return LocalStore.from_url(self.root).root.absolute() if _is_here(self.root) else None


def files_of(stream: Stream, columns: tuple[str, ...] | None) -> FilesOfStream | None:
    """Return what is asked for if a stream is, or may be, files of other programs; None: it has an index."""
    if stream.format == MDS:
        if stream.queries:
            raise ConfigError("format='mds' is a folder with an index.json, and only URLs of single files have queries")
        return None
    name = None if stream.format is None else format_of(stream.format)
    source = _source(stream, is_said=name is not None)
    if source is None:
        _refuse_settings(stream)
        return None
    request = FilesRequest(
        patterns=source.patterns,
        format=name,
        settings=_settings(stream),
        columns=columns,
        may_have_index=source.patterns == ("",) and name is None and not _is_here(source.root),
    )
    if _is_repository(source.root) and source.patterns == ("",):
        request = replace(request, is_repository=True, subset=stream.subset, split=stream.split or None)
    elif stream.subset is not None:
        raise ConfigError(
            "subset= is for whole repositories on the Hugging Face Hub: name the files with a glob instead"
        )
    return FilesOfStream(source.root, request)


def _is_repository(url: str) -> bool:
    """Return whether a URL names a dataset of the Hub, and nothing in it."""
    if url_scheme(url) != "hf":
        return False
    kind, _, _, path = parse_hub_url(url)
    return kind == "dataset" and not path


def _source(stream: Stream, *, is_said: bool) -> NamedFiles | None:
    if stream.patterns is not None:
        if stream.split:
            raise ConfigError("split= names a folder below remote, and a list of files has none: leave it out")
        return NamedFiles(str(stream.remote or stream.local), stream.patterns)
    if stream.remote is not None and _is_repository(stream.remote):
        return _of_repository(stream, stream.remote)
    url = stream.url or str(stream.folder)
    if not _is_here(url):
        is_literal = has_magic(url) and not is_said and _has_index(url, stream)
        return None if is_literal else find_source(url, _suffixes(url))
    path = LocalStore.from_url(url).root  # a name that exists is taken as it is, whatever else it might mean
    with os_errors(path):
        if path.is_dir():
            has_index = (path / INDEX_NAME).exists()
            return None if has_index and not is_said else NamedFiles(url, ("",))
        if path.is_file():
            return NamedFiles(str(path.parent), (path.name,))
    return find_source(url, _suffixes(url)) if has_magic(url) or is_file_name(url, _suffixes(url)) else None


def _suffixes(url: str) -> tuple[str, ...]:
    """Return the endings that tell a file, if this name has one at all: to know them, every format has to be loaded."""
    return known_suffixes() if "." in url.rpartition("/")[2] else ()


def _of_repository(stream: Stream, url: str) -> NamedFiles | None:
    """Take a repository as a whole, unless its split is a folder with an index."""
    if stream.split and stream.format is None and _has_index(str(stream.url), stream):
        return None
    return NamedFiles(url, ("",))


def _has_index(url: str, stream: Stream) -> bool:
    """Return whether a folder of a store, of this very name, has an index."""
    with suppress(StoreError):
        retry = RetryPolicy.of(stream.download_retry, stream.download_timeout)
        open_proxied(url, stream.storage_options, retry=retry).stat(INDEX_NAME)
        return True
    return False


def fetched_share(index: Index, columns: tuple[str, ...] | None) -> float:
    """Return about how much of its shards is fetched for some columns: as much as of a few of them."""
    shards = index.shards
    if columns is None or not shards or not get_format(shards[0].layout.format).raw_version:
        return 1.0
    some = [shards[number] for number in range(0, len(shards), -(-len(shards) // _SHARDS_LOOKED_AT))]
    form = get_file_format(some[0].layout.format)
    fetched = sum(len(span) for info in some for span in form.spans(info, columns))
    return min(1.0, fetched / max(1, sum(info.parts[0].stored.num_bytes for info in some)))


def _settings(stream: Stream) -> dict[str, Any]:
    return {} if stream.types is None else {"types": dict(stream.types)}


def _refuse_settings(stream: Stream) -> None:
    if stream.types is not None:
        raise ConfigError("types= is for CSV files, and this is a dataset with an index: leave it out")


def _is_here(url: str) -> bool:
    return url_scheme(url) in (None, "file")
