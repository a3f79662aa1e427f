"""What is asked of the fetcher: streams, and what they are made of, index, shards and other objects."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cachedir.layout import apart_name, place_of, user_cache_dir
from penstock.codecs.digest import check_hashes, quickest_hash
from penstock.errors import ConfigError
from penstock.index.catalog import INDEX_NAME
from penstock.storage.base import StoreSettings, url_scheme
from penstock.wire.item import Item, ItemPart, StoredFile

if TYPE_CHECKING:
    from penstock.index.model import FileInfo, Part, ShardInfo
    from penstock.wire.settings import CachedStream


def settled(stream: CachedStream) -> CachedStream:
    """Give the same stream for any process, checked: paths that no longer depend on where it stands."""
    check_hashes(stream.validate_hash)
    store = stream.store
    if url_scheme(store.url) is None:
        store = StoreSettings(place_of(store.url), store.options)
    directory = Path(os.path.realpath(os.path.expanduser(stream.directory)))  # noqa: PTH111
    is_private = directory.is_relative_to(os.path.realpath(user_cache_dir()))
    return replace(stream, directory=directory, is_private=is_private, store=store)


def names_of(identity: str) -> tuple[str, str]:
    """Give the names under which an item may lie, by its identity: the plain one, and the one apart."""
    edition, _, name = identity.partition(":")
    return name, apart_name(edition, name)


def item_of_shard(shard: ShardInfo, number: int, edition: str, validate_hash: str | None = None) -> Item:
    """Describe a shard; its files carry the digest that `validate_hash` names, else the quickest one there is."""
    parts = tuple(_part(part, validate_hash) for part in shard.parts)
    validates = validate_hash is not None
    return Item(parts, shard.layout.compression, edition=edition, number=number, validates=validates)


def item_of_object(
    key: str, name: str, num_bytes: int | None = None, *, edition: str = "", refresh: bool = False
) -> Item:
    """Describe an object that is no shard."""
    return Item((ItemPart(StoredFile(name, key, num_bytes)),), refresh=refresh, edition=edition)


def item_of_index() -> Item:
    """Describe the index, which is asked for anew each time: the data may have been written anew."""
    return Item((ItemPart(StoredFile(INDEX_NAME, INDEX_NAME, None)),), refresh=True, is_index=True)


def _part(part: Part, validate_hash: str | None) -> ItemPart:
    if part.span is not None:
        raise ConfigError(
            f"{part.stored.basename} is a part of {part.span.basename}, and penstock cannot fetch parts of files"
            " from a store yet: copy the dataset to a folder and read it there",
            where=part.span.basename,
        )
    if part.packed is None:
        return ItemPart(_file(part.raw, validate_hash))
    # The raw form of a compressed file comes from unpacking: its digest is for files that somebody else put there.
    name = validate_hash if validate_hash in part.raw.digests else None
    return ItemPart(_file(part.raw, name), _file(part.packed, validate_hash))


def _file(info: FileInfo, validate_hash: str | None) -> StoredFile:
    name = validate_hash
    if name is None:
        name = quickest_hash(info.digests)
    elif name not in info.digests:
        raise ConfigError(
            f"{info.basename} has no {name} digest to check: the index has {', '.join(info.digests) or 'none'}",
            where=info.basename,
        )
    digest = None if name is None else f"{name}:{info.digests[name]}"
    return StoredFile(info.basename, info.basename, info.num_bytes, digest)
