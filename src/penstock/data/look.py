"""A dataset as it is kept, to be looked at: its index, and its stored files; of files without an index, each shard."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cache.cache import Cache
from penstock.cache.proxied import lend_proxied, open_proxied
from penstock.cachedir.editions import Edition
from penstock.data.stream import Stream
from penstock.data.stream_files import LocalFiles, cached_stream, files_of
from penstock.formats.parts import open_files
from penstock.index.catalog import parse_index
from penstock.index.files_json import STORED_NAME
from penstock.index.paths import INDEX_NAME, resolve_inside
from penstock.reading.local_folder import read_local_index
from penstock.storage.base import shown_url, url_scheme
from penstock.storage.local import LocalStore
from penstock.storage.url_names import join_url
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.data.stream_files import FilesOfStream
    from penstock.formats.base import ReadOptions, ShardReader
    from penstock.index.model import Index, Part, ShardInfo
    from penstock.scan.patterns import Given
    from penstock.storage.base import Store

_LITTLE_BYTES = 1 << 30
_SHARDS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """A dataset in a folder of this machine, or in a store, past all caches."""

    place: Path | Store
    shown: str  # without secrets

    @classmethod
    @contextmanager
    def at(
        cls, place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> Iterator[StoredDataset]:
        """Find a dataset by its path or URL; what the options leave out, the environment says."""
        url = os.fspath(place)
        if url_scheme(url) in (None, "file"):
            folder = Path(url).expanduser() if url_scheme(url) is None else LocalStore.from_url(url).root
            yield cls(folder, str(folder))
            return
        with lend_proxied(url, storage_options) as store:
            yield cls(store, shown_url(url))

    def read_index(self) -> Index:
        """Read the index as it is now."""
        if isinstance(self.place, Path):
            return read_local_index(self.place)
        return parse_index(self.place.read(INDEX_NAME), f"{self.shown.rstrip('/')}/{INDEX_NAME}")

    @contextmanager
    def stored_shard(self, shard: ShardInfo) -> Iterator[Path]:
        """Yield a folder where the stored files of a shard are: the dataset's, or one that they were brought to."""
        if isinstance(self.place, Path):
            yield self.place
            return
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            for part in shard.parts:
                path = resolve_inside(Path(folder), part.stored.basename)
                path.parent.mkdir(parents=True, exist_ok=True)
                self.place.download(*_object_of(part, path))
            yield Path(folder)


def _object_of(part: Part, path: Path) -> tuple[str, Path, Span | None]:
    """Return which object to download for a part, to which file, and which of its bytes."""
    span = part.span
    if span is None:
        return part.stored.basename, path, None
    return span.basename, path, Span(span.offset, span.offset + span.num_bytes)


@dataclass(frozen=True, slots=True)
class FilesLook:
    """Files that have no index of their own, with the one that was made of them."""

    files: FilesOfStream
    index: Index
    index_path: Path
    cache: Cache
    storage_options: Mapping[str, Any] | None

    @classmethod
    @contextmanager
    def at(
        cls,
        place: Given,
        *,
        storage_options: Mapping[str, Any] | None = None,
        is_fresh: bool = False,
        **settings: Any,
    ) -> Iterator[FilesLook | None]:
        """Index files by what a `Stream` calls them; None: it is a dataset with an index.

        With `is_fresh` nothing is taken from the cache, and nothing is left in it.
        """
        stream = Stream(remote=place, storage_options=storage_options, **settings)
        stream.apply_default({})
        files = files_of(stream, None)
        if files is None:
            yield None
            return
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-"))) if is_fresh else None
            settled = cached_stream(stream, files, folder)
            cache = stack.enter_context(Cache([settled]))
            index = cache.open_index(0)
            known = cache.indexes[0]
            if not index.columns.content or known is None:
                yield None
                return
            path = Edition(settled.directory, known[0]).index_path
            if is_fresh:  # no more of them lie there at once than have to
                limit = max(_LITTLE_BYTES, _SHARDS_AT_ONCE * int(index.columns.raw_sizes.max(initial=0)))
                cache = stack.enter_context(Cache([settled], limit_bytes=limit))
                cache.open_index(0)
            yield cls(files, index, path, cache, storage_options)

    def store_index(self) -> str:
        """Leave the index beside the files, for everybody who reads them, and say where."""
        if self.files.folder is not None:
            shutil.copyfile(self.index_path, self.files.folder / STORED_NAME)
        else:
            open_proxied(self.files.root, self.storage_options).upload(self.index_path, STORED_NAME)
        return join_url(shown_url(self.files.root), STORED_NAME)

    @contextmanager
    def open_shard(self, number: int, options: ReadOptions) -> Iterator[ShardReader]:
        """Open a shard, where it lies or fetched for the time being."""
        info = self.index.shards[number]
        here = None if self.files.folder is None else LocalFiles(self.files.folder)
        with ExitStack() as stack:
            if here is not None and here.is_raw(info):
                reader = here.open_shard(info, options)
            else:
                reader = open_files(stack.enter_context(self.cache.lease(0, number)).paths, info, options)
            stack.callback(reader.close)
            yield reader
