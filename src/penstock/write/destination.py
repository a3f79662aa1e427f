"""Where a dataset is written to: a local folder, a store, or both."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cache.proxied import ProxiedStore, open_proxied
from penstock.errors import AccessDeniedError, BadIndexError, ConfigError, ObjectNotFoundError, OutputExistsError
from penstock.files import flush_folder, os_errors, sweep
from penstock.index.catalog import INDEX_NAME, parse_index
from penstock.index.model import Index
from penstock.index.paths import resolve_inside
from penstock.storage.base import check_writable, shown_url, url_scheme
from penstock.storage.local import LocalStore
from penstock.storage.retry import RetryPolicy
from penstock.write.rotate import is_shard_file, renumbered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.index.model import ShardInfo
    from penstock.storage.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A local folder and, if the dataset goes further, the store that it is uploaded to."""

    local: Path
    store: Store | None = None
    remote: str | None = field(default=None, repr=False)
    keep_local: bool = True
    is_temporary: bool = False

    @property
    def shown(self) -> str:
        """Where the dataset ends up, as it may be shown."""
        return shown_url(self.remote or str(self.local))

    def open(self, *, exist_ok: bool, append: bool) -> Index:
        """Make it ready, without what killed writers left, and give the index to continue or, later, to replace."""
        if exist_ok and append:
            raise ConfigError("exist_ok=True replaces a dataset and append=True continues it: choose one of them")
        with os_errors(self.local):
            if self.store is not None:
                check_writable(self.store)  # before the first sample, not after the last one
            if append or exist_ok:
                sweep(self.local)
                index = (self._published_index() if append else self._replaced_index()) or Index(())
                if index.shards or exist_ok:
                    self.remove_others(index)
                self.local.mkdir(parents=True, exist_ok=True)
                return index
            is_taken = self.local.is_dir() and any(self.local.iterdir())
            if is_taken or (self.store is not None and _read_index(self.store, self.shown) is not None):
                place = str(self.local) if is_taken else self.shown
                raise OutputExistsError(
                    f"Directory is not empty: {place}. Pass exist_ok=True to replace the dataset in it, or"
                    " append=True to continue it",
                    path=place,
                )
            self.local.mkdir(parents=True, exist_ok=True)
            return Index(())

    @property
    def flushes(self) -> bool:
        """Whether local files are there to stay, so that they have to survive a loss of power."""
        return self.store is None or self.keep_local

    def flush_names(self) -> None:
        """Have on the disk that the files written so far are there: what comes next may rely on them."""
        if self.flushes:
            flush_folder(self.local)
            with suppress(AccessDeniedError):  # the folder may be new, and the one above not ours to open
                flush_folder(self.local.absolute().parent)

    def stop(self) -> None:
        """Give up uploads that are under way, and those to come."""
        if isinstance(self.store, ProxiedStore):
            self.store.stop()

    def close(self) -> None:
        """Remove what was only on its way, and hang up."""
        if isinstance(self.store, ProxiedStore):
            self.store.close()
        if self.is_temporary:
            shutil.rmtree(self.local, ignore_errors=True)
        elif not self.keep_local:
            with os_errors(self.local):
                if self.local.is_dir() and not any(self.local.iterdir()):
                    self.local.rmdir()

    def remove_others(self, index: Index, replaced: Index | None = None) -> None:
        """Remove shards that an index does not name, and those that it replaces; other files are not ours to touch."""
        kept = set(_files(index))
        for store in filter(None, (LocalStore(self.local), self.store)):
            names = {info.key for info in store.list("shard.") if is_shard_file(info.key)}
            for name in names.union(_files(replaced or Index(()))) - kept:
                if isinstance(store, LocalStore):
                    resolve_inside(store.root, name)
                with suppress(ObjectNotFoundError):  # of a compressed file, only one form is stored
                    store.delete(name)

    def renumber(self, index: Index) -> Index:
        """Give the shards of a local folder second names, numbered from 0 on; return the index that says so."""
        numbered = renumbered(index)
        with suppress(OSError):  # a disk without links, or more shards than there are numbers before these
            for name, new in dict(zip(_files(index), _files(numbered), strict=True)).items():
                with suppress(FileNotFoundError):  # of a compressed file, only one form is stored
                    (self.local / new).hardlink_to(self.local / name)
            return numbered
        return index

    def _published_index(self) -> Index | None:
        local = _read_index(LocalStore(self.local), str(self.local))
        if self.store is None:
            return local
        remote = _read_index(self.store, self.shown)
        if local is not None and remote is not None and local != remote:
            raise ConfigError(
                f"{self.local} and {self.shown} hold different datasets: make them equal before you append to both"
            )
        return remote or local

    def _replaced_index(self) -> Index:
        shards: list[ShardInfo] = []
        for store in filter(None, (LocalStore(self.local), self.store)):
            with suppress(BadIndexError):  # it shall be replaced, so it need not be readable
                found = _read_index(store, self.shown)
                shards += found.shards if found is not None else ()
        return Index(tuple(shards))


def parse_destination(
    out: Any,
    remote: Any = None,
    *,
    keep_local: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    attempts: int = 2,
) -> Destination:
    """Understand `out` as a path, a URL or a pair of both, and `remote` as a store beside a path."""
    if isinstance(out, (tuple, list)):
        if len(out) != 2:
            raise ConfigError(
                f"Invalid `out` argument of {len(out)} items: pass a path, a URL, or a pair (local path, remote URL)"
            )
        if remote is not None:
            raise ConfigError("Invalid `out` argument: the pair already contains the remote, so leave out `remote`")
        local, remote = out
        return _both(_text(local), _open(remote, storage_options, attempts), keep_local)
    text = _text(out)
    if remote is not None:
        return _both(text, _open(remote, storage_options, attempts), True)
    if url_scheme(text) in (None, "file"):
        return Destination(local=LocalStore.from_url(text).root)
    _, store = _open(text, storage_options, attempts)
    folder = Path(tempfile.mkdtemp(prefix="penstock-"))
    return Destination(local=folder, store=store, remote=text, keep_local=False, is_temporary=True)


def _open(remote: Any, storage_options: Mapping[str, Any] | None, attempts: int) -> tuple[str, Store]:
    url = _text(remote)
    return url, open_proxied(url, storage_options, retry=RetryPolicy(attempts=attempts))


def _both(local: str, opened: tuple[str, Store], keep_local: bool) -> Destination:
    remote, store = opened
    if url_scheme(local) not in (None, "file"):
        raise ConfigError(f"Invalid `out` argument: {shown_url(local)!r} is a URL, but this must be a local path")
    folder = LocalStore.from_url(local).root
    if isinstance(store, LocalStore) and store.root.absolute() == folder.absolute():
        raise ConfigError(f"Invalid `out` argument: local and remote are both {folder}")
    return Destination(local=folder, store=store, remote=remote, keep_local=keep_local)


def _text(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ConfigError(f"Invalid `out` argument {value!r}: pass a path, a URL, or a pair (local path, remote URL)")
    return str(os.fspath(value))


def _read_index(store: Store, where: str) -> Index | None:
    try:
        return parse_index(store.read(INDEX_NAME), f"{where}/{INDEX_NAME}")
    except ObjectNotFoundError:
        return None


def _files(index: Index) -> list[str]:
    return [file.basename for shard in index.shards for part in shard.parts for file in (part.raw, part.stored)]
