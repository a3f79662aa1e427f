"""Many partial datasets → one: `merge_index` reads their indexes and publishes a joint one at their root."""

from __future__ import annotations

import os
import posixpath
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.cache.proxied import open_proxied
from penstock.errors import BadIndexError, ConfigError, ObjectNotFoundError, StoreTimeoutError
from penstock.files import sweep
from penstock.index.catalog import parse_index
from penstock.index.model import Index
from penstock.index.mosaic_json import dump_index
from penstock.index.paths import INDEX_NAME, is_shard_name
from penstock.publish.target import FilesTarget, open_files
from penstock.storage.base import shown_url, url_scheme
from penstock.storage.local import LocalStore
from penstock.storage.url_names import real_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from penstock.index.model import IndexedShard
    from penstock.storage.base import Store

    Location = str | PathLike[str]
    Out = Location | tuple[Location, Location]


def merge_index(
    *args: Any,
    index_file_urls: Sequence[Location | tuple[Location, Location]] | None = None,
    out: Out | None = None,
    keep_local: bool = True,
    download_timeout: float = 60,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Publish one index for many partial datasets.

    `merge_index(out)` merges every `index.json` below `out`, at any depth. `merge_index(index_file_urls, out)` merges
    the indexes that you name. Each is a path, a URL, or a pair of both; of a pair, the local one is read if it exists.
    Shards stay where they are. The merged index lists them by folder, sorted, so the order in which they were written
    or named does not matter. Reading all indexes may take at most `download_timeout` seconds. `storage_options` are the
    credentials and settings of the remote stores.
    """
    if len(args) == 1:
        (out,) = args
    elif len(args) == 2:
        index_file_urls, out = args
    if out is None or len(args) > 2 or isinstance(index_file_urls, (str, os.PathLike)):
        raise ConfigError("call merge_index(out) or merge_index(index_file_urls, out)")
    target = open_files(out, keep_local=keep_local, storage_options=storage_options)
    deadline = time.monotonic() + download_timeout
    try:
        sweep(target.folder)
        if index_file_urls is None:
            merged = merge_indexes(_indexes_below(target, deadline))
        else:
            merged = merge_indexes(_indexes_named(index_file_urls, target, deadline, storage_options))
        target.publish(dump_index(merged, is_merged=True))
    finally:
        target.close()


def _indexes_below(target: FilesTarget, deadline: float) -> dict[str, Index]:
    """Read every index below the root but the root's own; the local folder is preferred if it holds any.

    Hidden folders are no part of a dataset: one of them may be the cache of a job that reads here.
    """
    for store, where in zip(target.places, (str(target.folder), target.shown), strict=False):
        keys = [info.key for info in store.list() if posixpath.basename(info.key) == INDEX_NAME]
        folders = [folder for key in keys if is_shard_name(folder := posixpath.dirname(key))]
        if folders:
            return {folder: _read(store, f"{folder}/{INDEX_NAME}", where, deadline) for folder in folders}
    raise ObjectNotFoundError(
        f"there is no {INDEX_NAME} in any folder below {target.shown}: name the folder"
        " whose folders the writers wrote to"
    )


def _indexes_named(
    urls: Sequence[Location | tuple[Location, Location]],
    target: FilesTarget,
    deadline: float,
    storage_options: Mapping[str, Any] | None,
) -> dict[str, Index]:
    if not urls:
        raise ConfigError("index_file_urls is empty: pass at least one index")
    roots = [str(target.folder.absolute()), *([_as_path(target.url)] if target.url else [])]
    names, indexes = [], []
    for url in urls:
        local, remote = _pair(url)
        names.append(_as_path(remote or local))
        chosen = local if (local and os.path.exists(local)) or not remote else remote  # noqa: PTH110
        parent, _, name = chosen.rpartition("/")
        indexes.append(_read(open_proxied(parent or ".", storage_options), name, shown_url(parent), deadline))
    folders = [posixpath.dirname(name) for name in names]
    root = next((root for root in roots if all(folder.startswith(f"{root}/") for folder in folders)), None)
    if root is None:  # the joint index is made elsewhere: lay it over their common root
        root = posixpath.commonpath([posixpath.dirname(folder) for folder in folders])
    below = [posixpath.relpath(folder, root) for folder in folders]
    for folder in below:
        if not is_shard_name(folder):
            raise ConfigError(
                f"a merged index cannot refer to shards in {folder!r}: readers refuse hidden and unusual names"
            )
    return dict(zip(below, indexes, strict=True))


def _read(store: Store, key: str, where: str, deadline: float) -> Index:
    if time.monotonic() > deadline:
        raise StoreTimeoutError(f"reading the indexes of {where} took too long: raise download_timeout")
    return parse_index(store.read(key), f"{where}/{key}")


def _pair(url: Location | tuple[Location, Location]) -> tuple[str, str]:
    if isinstance(url, (tuple, list)):
        if len(url) != 2:
            raise ConfigError(f"{len(url)} names are not a pair of a local path and a remote URL")
        return os.fspath(url[0]), os.fspath(url[1])
    text = os.fspath(url)
    return (text, "") if url_scheme(text) is None else ("", text)


def _as_path(url: str) -> str:
    """Spell a location so that one can tell what lies below what: absolute, or with its scheme as first folder."""
    if url_scheme(url) in (None, "file"):
        return str(LocalStore.from_url(url).root.absolute())
    scheme, _, rest = shown_url(url).partition("://")  # it may become part of names in the joint index
    return f"/{scheme}:/{real_name(url, rest).strip('/')}"


def merge_indexes(by_folder: Mapping[str, Index]) -> Index:
    """Join the indexes of folders below one root, sorted by folder, with names relative to that root.

    A folder may itself hold a merged index of folders below it: a shard that is named twice counts once.
    """
    merged: dict[str, IndexedShard] = {}
    for folder in sorted(by_folder, key=lambda path: path.split("/")):
        for shard in by_folder[folder].shards:
            moved = shard.renamed(partial(posixpath.join, folder))
            known = merged.setdefault(moved.name, moved)
            if known != moved:
                raise BadIndexError(
                    f"two indexes describe {moved.name} differently, the second in {folder or 'the root'}: remove the"
                    " outdated index",
                    shard=moved.name,
                )
    return Index(tuple(merged.values()))
