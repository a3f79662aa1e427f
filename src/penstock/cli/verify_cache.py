"""`verify_cache` digests what lies in cache directories and, if asked, fetches again what does not match its index."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from penstock.cache.cache import Cache
from penstock.cache.contents import find_directories, read_contents
from penstock.cache.lease import find_damaged
from penstock.cachedir.items import item_of_shard
from penstock.cachedir.layout import plain_name
from penstock.errors import PenstockError
from penstock.index.catalog import parse_index_file
from penstock.storage.base import resolve_store
from penstock.wire.settings import CachedStream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.cache.contents import CachedCopy, Contents
    from penstock.wire.item import Item


class CacheCheck(NamedTuple):
    """What was found in the cache."""

    num_shards: int  # that were checked: those of which an index has digests
    damaged: list[str]  # a file of each damaged shard
    problems: list[str]  # why it was not fetched again


def verify_cache(folders: Sequence[str] | None = None, *, repair: bool = False) -> CacheCheck:
    """Compare cached files with their digests; repair with the credentials that the environment holds."""
    num_shards, damaged, problems = 0, [], []
    for copy, item in chain.from_iterable(_with_digests(read_contents(folder)) for folder in find_directories(folders)):
        files = {file.name: file for part in item.parts for file in (part.raw, part.stored)}
        num_shards += 1
        with suppress(FileNotFoundError):  # it was evicted at this moment
            path = find_damaged((copy.directory / it.name, files[plain_name(it.name)]) for it in copy.record.files)
            if path is not None:
                damaged.append(str(path))
                problems += _repair(copy, item, path) if repair else [f"{path} does not have the digest in its index"]
    return CacheCheck(num_shards, damaged, problems)


def _with_digests(contents: Contents) -> Iterator[tuple[CachedCopy, Item]]:
    copies = {(copy.record.edition, plain_name(copy.record.name)): copy for copy in contents.copies}
    for edition in (found.edition for found in contents.editions if found.source is not None):
        with suppress(FileNotFoundError):
            for number, shard in enumerate(parse_index_file(edition.index_path, str(edition.index_path)).shards):
                copy = copies.get((edition.name, shard.name))
                if copy is not None and shard.parts[0].stored.digests:
                    yield copy, item_of_shard(shard, number, edition.name)


def _repair(copy: CachedCopy, item: Item, path: Path) -> list[str]:
    """Fetch a shard again; return why that was impossible, if it was."""
    try:
        store = resolve_store(copy.source.partition(" at ")[0])  # its endpoint is in the environment
        keep_zip = len(copy.record.files) > len(item.parts)
        with Cache([CachedStream(directory=copy.directory, store=store, keep_zip=keep_zip)]) as cache:
            cache.fetch_again(0, item, path)
    except PenstockError as error:
        return [str(error)]
    return []
