"""`verify_cache` digests what lies in cache directories and, if asked, fetches again what does not match its index."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.cache.cache import Cache
from penstock.cache.contents import find_directories, read_contents
from penstock.cachedir.items import item_of_shard
from penstock.cachedir.layout import plain_name
from penstock.cachedir.presence import status_if_unchanged
from penstock.errors import ObjectChangedError, PenstockError
from penstock.fetcher.open_editions import digest_of
from penstock.index.catalog import parse_index_file
from penstock.storage.base import resolve_store
from penstock.wire.settings import CachedStream

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.cache.contents import CachedCopy, Contents
    from penstock.wire.item import Item


@dataclass(slots=True)
class CacheCheck:
    """What was checked in the cache, and what was found."""

    num_shards: int = 0  # that have digests, and were checked
    num_unknown: int = 0  # shards and other objects of which no index has a digest
    damaged: list[str] = field(default_factory=list)  # a file of each damaged shard
    repaired: list[str] = field(default_factory=list)  # those of them that were fetched again
    problems: list[str] = field(default_factory=list)  # why the others could not be


def verify_cache(folders: Sequence[str | os.PathLike[str]] | None = None, *, repair: bool = False) -> CacheCheck:
    """Digest all cached files, and compare them with the indexes that they were fetched for.

    Args:
        folders: Folders that you passed as `local`, or folders above them; by default your user cache.
        repair: Fetch damaged shards again, with the credentials that the environment holds.
    """
    check = CacheCheck()
    for contents in map(read_contents, find_directories(folders)):
        items = _find_items(contents)
        for copy in contents.copies:
            item = items.get((copy.record.edition, plain_name(copy.record.name)))
            if item is None or item.parts[0].stored.digest is None:
                check.num_unknown += 1
                continue
            check.num_shards += 1
            path = _find_damaged(copy, item)
            if path is not None:
                check.damaged.append(str(path))
                if repair:
                    _repair(check, copy, item, path)
    return check


def _find_items(contents: Contents) -> dict[tuple[str, str], Item]:
    """Return the shards that the indexes of a directory describe, by edition and name."""
    names = {plain_name(copy.record.name) for copy in contents.copies}
    items = {}
    for edition in (found.edition for found in contents.editions):
        with suppress(FileNotFoundError):  # it was removed at this moment, or left unfinished
            for number, shard in enumerate(parse_index_file(edition.index_path, str(edition.index_path)).shards):
                if shard.name in names:
                    items[edition.name, shard.name] = item_of_shard(shard, number, edition.name)
    return items


def _find_damaged(copy: CachedCopy, item: Item) -> Path | None:
    """Return the first file of a copy that does not have its digest, or None."""
    files = [file for part in item.parts for file in (part.raw, part.stored)]
    digests = {file.name: file.digest.partition(":") for file in files if file.digest is not None}
    for stamp in copy.record.files:
        name, _, expected = digests.get(plain_name(stamp.name), ("", "", ""))
        path = copy.directory / stamp.name
        with suppress(FileNotFoundError):  # it was evicted at this moment
            if name and digest_of(path, name) != expected and status_if_unchanged(copy.directory, stamp):
                return path
    return None


def _repair(check: CacheCheck, copy: CachedCopy, item: Item, path: Path) -> None:
    """Fetch the shard again from where it came."""
    place, _, endpoint = copy.source.partition(" at ")
    try:
        store = resolve_store(place, {"endpoint": endpoint} if endpoint else None)
        stream = CachedStream(directory=copy.directory, store=store, keep_zip=len(copy.record.files) > len(item.parts))
        with Cache([stream]) as cache:
            cache.open_index(0)
            if cache.indexes[0] is None or cache.indexes[0][0] != item.edition:
                raise ObjectChangedError(
                    f"{path} cannot be fetched again, because {copy.source} was written again since: remove it with"
                    " `penstock cache clear`",
                    path=str(path),
                )
            cache.fetch_again(0, item, path)
    except PenstockError as error:
        check.problems.append(str(error))
    else:
        check.repaired.append(str(path))
