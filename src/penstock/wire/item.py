"""What can be asked of the fetcher: a shard with all its files, or a single object, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.cachedir.layout import apart_name
from penstock.codecs.digest import quickest_hash
from penstock.errors import ConfigError
from penstock.index.catalog import INDEX_NAME

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
    refresh: bool = False  # fetch it even if it is there
    edition: str = ""  # the edition of the dataset that it belongs to
    number: int | None = None  # of a shard, in the index of its edition
    is_index: bool = False  # it is the index itself, which makes an edition
    validates: bool = False  # files that somebody else put there are digested before they are used

    @property
    def name(self) -> str:
        """The name that stands for the whole."""
        return self.parts[0].raw.name

    @property
    def identity(self) -> str:
        """What tells it from all other items of its directory: two editions may use one name."""
        return f"{self.edition}:{self.name}"

    @property
    def raw_bytes(self) -> int:
        """The bytes that stay."""
        return sum(part.raw.num_bytes or 0 for part in self.parts)

    @property
    def packed_bytes(self) -> int:
        """The bytes of the compressed files, which are gone after unpacking unless they are kept."""
        return sum(part.packed.num_bytes or 0 for part in self.parts if part.packed)


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
            f"{part.stored.basename} lies within {part.span.basename}, and parts of objects are not fetched yet: copy"
            " the dataset to a folder and read it there",
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
            f"{info.basename} has no {name} digest to check: recorded are {', '.join(info.digests) or 'none'}",
            where=info.basename,
        )
    digest = None if name is None else f"{name}:{info.digests[name]}"
    return StoredFile(info.basename, info.basename, info.num_bytes, digest)


# --- As JSON ------------------------------------------------------------------------------------------------


def dump_item(item: Item) -> list[Any]:
    """Give an item as plain JSON values."""
    parts = [[_dump_file(part.raw), _dump_file(part.packed) if part.packed else None] for part in item.parts]
    return [parts, item.compression, item.refresh, item.edition, item.number, item.is_index, item.validates]


def load_item(value: list[Any]) -> Item:
    """Rebuild an item."""
    files, *others = value
    parts = (ItemPart(_load_file(raw), _load_file(packed) if packed else None) for raw, packed in files)
    return Item(tuple(parts), *others)


def _dump_file(file: StoredFile) -> list[Any]:
    return [file.name, file.key, file.num_bytes, file.digest]


def _load_file(value: list[Any]) -> StoredFile:
    name, key, num_bytes, digest = value
    return StoredFile(name, key, num_bytes, digest)
