"""What can be asked of the fetcher: a shard with all its files, or a single object, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.index.model import FileInfo, Part, ShardInfo


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One object and the name it gets in the directory. A size of None: whatever the store has."""

    name: str
    key: str
    num_bytes: int | None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class ItemPart:
    """One file as it is read and, if it is stored compressed, as it is fetched."""

    raw: StoredFile
    packed: StoredFile | None = None

    @property
    def stored(self) -> StoredFile:
        """What is fetched."""
        return self.packed or self.raw


@dataclass(frozen=True, slots=True)
class Item:
    """Files that come and go together; the first names them all."""

    parts: tuple[ItemPart, ...]
    compression: str | None = None
    is_object: bool = False  # no shard of the index
    refresh: bool = False  # fetch it even if it is there

    @property
    def name(self) -> str:
        """The name that stands for the whole."""
        return self.parts[0].raw.name

    @property
    def raw_bytes(self) -> int:
        """The bytes that stay."""
        return sum(part.raw.num_bytes or 0 for part in self.parts)

    @property
    def packed_bytes(self) -> int:
        """The bytes of the compressed files, which are gone after unpacking unless they are kept."""
        return sum(part.packed.num_bytes or 0 for part in self.parts if part.packed)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all files it may have in the directory, in the order to delete them."""
        packed = (part.packed.name for part in self.parts if part.packed)
        return (*(part.raw.name for part in self.parts), *packed)


def item_of_shard(shard: ShardInfo, validate_hash: str | None = None) -> Item:
    """Describe a shard; with `validate_hash`, its stored files carry the digest of that name."""
    return Item(tuple(_part(part, validate_hash) for part in shard.parts), shard.layout.compression)


def item_of_object(key: str, name: str, num_bytes: int | None = None, *, refresh: bool = False) -> Item:
    """Describe an object that is no shard."""
    return Item((ItemPart(StoredFile(name, key, num_bytes)),), is_object=True, refresh=refresh)


def _part(part: Part, validate_hash: str | None) -> ItemPart:
    if part.packed is None:
        return ItemPart(_file(part.raw, validate_hash))
    return ItemPart(_file(part.raw, None), _file(part.packed, validate_hash))


def _file(info: FileInfo, validate_hash: str | None) -> StoredFile:
    digest = None
    if validate_hash is not None:
        if validate_hash not in info.digests:
            raise ConfigError(
                f"{info.basename} has no {validate_hash} digest to check: recorded are"
                f" {', '.join(info.digests) or 'none'}",
                where=info.basename,
            )
        digest = f"{validate_hash}:{info.digests[validate_hash]}"
    return StoredFile(info.basename, info.basename, info.num_bytes, digest)


# --- As JSON ------------------------------------------------------------------------------------------------


def dump_item(item: Item) -> list[Any]:
    """Give an item as plain JSON values."""
    parts = [[_dump_file(part.raw), _dump_file(part.packed) if part.packed else None] for part in item.parts]
    return [parts, item.compression, item.is_object, item.refresh]


def load_item(value: list[Any]) -> Item:
    """Rebuild an item."""
    parts, compression, is_object, refresh = value
    return Item(
        tuple(ItemPart(_load_file(raw), _load_file(packed) if packed else None) for raw, packed in parts),
        compression,
        is_object,
        refresh,
    )


def _dump_file(file: StoredFile) -> list[Any]:
    return [file.name, file.key, file.num_bytes, file.digest]


def _load_file(value: list[Any]) -> StoredFile:
    name, key, num_bytes, digest = value
    return StoredFile(name, key, num_bytes, digest)
