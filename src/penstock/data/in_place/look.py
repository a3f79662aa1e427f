"""Files of other programs as a whole: their index, made or found, and each shard, to be looked at or checked."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cache.cache import Cache
from penstock.cache.proxied import open_proxied
from penstock.cachedir.editions import Edition
from penstock.data.in_place.local_files import LocalFiles
from penstock.data.in_place.streams import files_of
from penstock.data.open_streams import cached_stream
from penstock.data.stream import Stream
from penstock.formats.parts import open_files
from penstock.index.files_json import STORED_NAME
from penstock.storage.base import shown_url
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.data.in_place.streams import FilesOfStream
    from penstock.formats.base import ReadOptions, ShardReader
    from penstock.index.model import Index
    from penstock.scan.patterns import Given

_LITTLE_BYTES = 1 << 30
_SHARDS_AT_ONCE = 4


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
        if here is not None and here.is_raw(info):
            reader = here.open_shard(info, options)
            try:
                yield reader
            finally:
                reader.close()
            return
        with self.cache.lease(0, number) as lease:
            reader = open_files(lease.paths, info, options)
            try:
                yield reader
            finally:
                reader.close()
