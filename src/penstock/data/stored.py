"""A dataset where it is kept, to look at it there: its index, and its stored files as they are."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cache.proxied import lend_proxied
from penstock.index.catalog import parse_index
from penstock.index.paths import INDEX_NAME, resolve_inside
from penstock.reading.local_folder import read_local_index
from penstock.storage.base import shown_url, url_scheme
from penstock.storage.local import LocalStore
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.index.model import Index, Part, ShardInfo
    from penstock.storage.base import Store


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
