"""Files of other programs that are read where they lie, on this machine, and never changed or deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cachedir.versions import tag_of
from penstock.codecs.unpack import map_span, release
from penstock.errors import ObjectChangedError
from penstock.formats.files import get_file_format
from penstock.storage.local import LocalStore

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.formats.base import ReadOptions, ShardReader
    from penstock.index.model import ShardInfo


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A folder, below which the names of an index are told."""

    path: Path

    def is_raw(self, info: ShardInfo) -> bool:
        """Return whether a shard is read as it is stored; others are unpacked into the cache."""
        return info.parts[0].packed is None

    def open_shard(self, info: ShardInfo, options: ReadOptions) -> ShardReader:
        """Map the part of a file that holds a shard, if the file is still the one that was indexed."""
        (part,) = info.parts
        span = part.span
        if span is None:
            raise TypeError(f"{info.name} is not part of a file")
        path = self.path / span.basename
        data = map_span(path, span.offset, span.num_bytes)
        try:
            found = LocalStore(self.path).stat(span.basename)  # after it was opened: what is mapped stays as it is
            if found.num_bytes != span.object_bytes or span.version not in (None, tag_of(found)):
                raise ObjectChangedError(f"{path} changed after it was indexed: open the dataset again", path=str(path))
            return get_file_format(info.layout.format).open([data], info, options)
        except BaseException:
            release(data)
            raise
