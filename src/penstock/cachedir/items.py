"""What is asked of the fetcher: streams, and what they are made of, index, shards and other objects."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cachedir.layout import apart_name, place_of, user_cache_dir
from penstock.codecs.digest import check_hashes, quickest_hash
from penstock.errors import ConfigError
from penstock.index.paths import INDEX_NAME
from penstock.storage.base import StoreSettings, url_scheme
from penstock.wire.item import Item, ItemPart, StoredFile, StoredSpan

if TYPE_CHECKING:
    from penstock.index.model import FileInfo, IndexedShard, Part
    from penstock.wire.settings import CachedStream, FilesRequest

    Columns = tuple[str, ...] | None


def resolved(stream: CachedStream) -> CachedStream:
    """Return the same stream for any process, checked: paths that no longer depend on where it stands."""
    check_hashes(stream.validate_hash)
    store = stream.store
    if url_scheme(store.url) is None:
        store = StoreSettings(place_of(store.url), store.options)
    directory = Path(os.path.realpath(os.path.expanduser(stream.directory)))  # noqa: PTH111
    is_private = directory.is_relative_to(os.path.realpath(user_cache_dir()))
    return replace(stream, directory=directory, is_private=is_private, store=store)


def names_of(identity: str) -> tuple[str, str]:
    """Return the names under which an item may lie, by its identity: the plain one, and the one apart."""
    edition, _, name = identity.partition(":")
    return name, apart_name(edition, name)


def item_of_shard(
    shard: IndexedShard, number: int, edition: str, validate_hash: str | None = None, columns: Columns = None
) -> Item:
    """Describe a shard; its files carry the digest that `validate_hash` names, else the quickest one there is."""
    is_unpacked = is_unpacked_by_format(shard)
    columns = columns if is_unpacked else None
    parts = tuple(_part(part, validate_hash, columns) for part in shard.parts)
    return Item(
        parts,
        shard.layout.compression,
        edition=edition,
        number=number,
        validates=validate_hash is not None,
        format=shard.layout.format if is_unpacked else None,
        columns=columns,
    )


def is_unpacked_by_format(shard: IndexedShard) -> bool:
    """Return whether readers open what the format makes of the stored bytes, and not a codec."""
    return shard.parts[0].packed is not None and shard.layout.compression is None


def raw_files(shard: IndexedShard, columns: Columns) -> list[tuple[str, int | None]]:
    """Return the names of the files that readers of a shard open, and their sizes as far as they are known."""
    columns = columns if is_unpacked_by_format(shard) else None
    return [(_raw_name(part, columns), part.raw.known_bytes) for part in shard.parts]


def _raw_name(part: Part, columns: Columns) -> str:
    """Return the name of a raw file: of some columns of a shard it is another one than of all."""
    if columns is None:
        return part.raw.basename
    return f"{part.raw.basename}.{hashlib.sha256(json.dumps(sorted(columns)).encode()).hexdigest()[:12]}"


def item_of_object(
    key: str, name: str, num_bytes: int | None = None, *, edition: str = "", refresh: bool = False
) -> Item:
    """Describe an object that is no shard."""
    return Item((ItemPart(StoredFile(name, key, num_bytes)),), refresh=refresh, edition=edition)


def item_of_index(files: FilesRequest | None = None) -> Item:
    """Describe the index, which is asked for anew each time: the data may have been written anew."""
    edition = "" if files is None else files.digest  # streams of one directory may ask for other files
    return Item((ItemPart(StoredFile(INDEX_NAME, INDEX_NAME, None)),), refresh=True, edition=edition, is_index=True)


def _part(part: Part, validate_hash: str | None, columns: Columns) -> ItemPart:
    if part.packed is None:
        return ItemPart(_stored(part, validate_hash))
    # The raw form of a compressed file comes from unpacking: its digest is for files that others put there.
    name = validate_hash if validate_hash in part.raw.digests else None
    raw = _file(part.raw, name)
    raw = raw._replace(name=_raw_name(part, columns), num_bytes=part.raw.known_bytes, estimate=part.raw.num_bytes)
    return ItemPart(raw, _stored(part, validate_hash))


def _stored(part: Part, validate_hash: str | None) -> StoredFile:
    """Describe what is fetched, which may lie within a larger object."""
    span = part.span
    if span is not None and span.version is not None:
        validate_hash = None
    file = _file(part.stored, validate_hash)
    if span is None:
        return file
    return file._replace(key=span.basename, span=StoredSpan(span.offset, span.object_bytes, span.version))


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
