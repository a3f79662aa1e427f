"""Where one cache lies, in a folder or a store: its few small files, and the locks of those who build it."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.cache.proxied import open_proxied
from penstock.cachedir.layout import place_of, user_cache_dir
from penstock.cachedir.lock import try_hold
from penstock.files import sweep
from penstock.index.catalog import parse_index
from penstock.index.paths import INDEX_NAME
from penstock.pipeline.caching.parts import part_name
from penstock.publish.settings import MANIFEST_NAME
from penstock.publish.target import hold_output, open_files, read_json
from penstock.storage.base import shown_url, url_scheme
from penstock.storage.local import LocalStore
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from penstock.cachedir.lock import Descriptor
    from penstock.index.model import Index
    from penstock.publish.target import FilesTarget
    from penstock.storage.base import Store

PLAN_NAME = "_plan.json"


@dataclass(frozen=True, slots=True)
class CachePlace:
    """A folder or a URL that holds one cache. It pickles, and any process that has it can build or read there."""

    url: str
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """The place, as it may be shown."""
        return shown_url(self.url)

    @property
    def folder(self) -> Path | None:
        """The folder, if it is one of this machine."""
        return LocalStore.from_url(self.url).root if url_scheme(self.url) in (None, "file") else None

    def store(self) -> Store:
        """Open the store that it is in, to read there."""
        return open_proxied(self.url, self.storage_options)

    def _target(self) -> FilesTarget:
        return open_files(self.url, storage_options=self.storage_options, entry=MANIFEST_NAME)

    def part_url(self, number: int) -> str:
        """Return the folder or URL of a part."""
        return join_url(self.url, part_name(number))

    def read(self, name: str) -> dict[str, Any] | None:
        """Read one of its files of JSON, if it is there."""
        return read_json(self.store(), name, self.shown)

    def write(self, name: str, data: bytes) -> None:
        """Write one of its small files, which appears whole; the caller holds a name, and others write none."""
        with closing(self._target()) as target:
            sweep(target.folder)
            target.write(name, data)

    def read_part(self, number: int) -> tuple[dict[str, Any], Index] | None:
        """Read the manifest and the index of a part, if it is whole."""
        manifest = self.read(f"{part_name(number)}/{MANIFEST_NAME}")
        if manifest is None:
            return None
        key = f"{part_name(number)}/{INDEX_NAME}"
        return manifest, parse_index(self.store().read(key), f"{self.shown}/{key}")

    def remove(self) -> None:
        """Remove all of the cache, first what says that it is whole."""
        with closing(self._target()) as target:
            target.remove([INDEX_NAME, MANIFEST_NAME, PLAN_NAME])
            if target.store is None:
                shutil.rmtree(target.folder, ignore_errors=True)
            else:
                target.remove(target.names())

    def hold(self, name: str, *, waits: bool) -> Descriptor:
        """Keep other processes of this machine from something that has a name here, until the result is closed.

        If one of them is at it, wait for it or fail. The kernel frees the lock of a process that is killed.
        """
        path = self._lock_path(name)
        return hold_output(lambda: try_hold(path), path, f"{name} of {self.shown}", waits=waits)

    def forget_locks(self, names: Iterable[str]) -> None:
        """Remove lock files when nothing is left to do for processes that wait: they look again once they have them."""
        for name in names:
            self._lock_path(name).unlink(missing_ok=True)

    def _lock_path(self, name: str) -> Path:
        # Not within the cache, which may be in a store, or be removed.
        folder = self.folder
        if folder is not None:
            return folder.parent / ".building" / f"{folder.name}-{name}.lock"
        digest = hashlib.sha256(place_of(self.url).encode()).hexdigest()[:24]
        return user_cache_dir() / "building" / f"{digest}-{name}.lock"
