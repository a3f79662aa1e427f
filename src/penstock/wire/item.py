"""What can be asked of the fetcher: a shard with all its files, or a single object, as plain values.

A plan holds 10⁶ of them, so they are tuples: quick to make, and JSON lists as they are.
"""

from __future__ import annotations

from typing import NamedTuple

GroupKey = tuple[int, int]  # client and its group
Cause = tuple[GroupKey, int]  # one of the streams of a group
ItemKey = tuple[str, str]  # directory and identity of the item


class StoredSpan(NamedTuple):
    """Where in an object a file lies, and what the whole object must still be."""

    offset: int
    object_bytes: int | None
    version: str | None


class StoredFile(NamedTuple):
    """One object and the name it gets in the directory. A size of None: whatever the store has, or unpacking gives."""

    name: str
    key: str
    num_bytes: int | None
    digest: str | None = None
    span: StoredSpan | None = None  # None: it is the whole object
    estimate: int = 0  # of a size that is not known

    @property
    def is_pinned(self) -> bool:
        """Whether it is known which bytes these are: by their digest, or by the version of their object."""
        return self.digest is not None or (self.span is not None and self.span.version is not None)


class ItemPart(NamedTuple):
    """One file as it is read and, if it is stored compressed, as it is fetched."""

    raw: StoredFile
    packed: StoredFile | None = None

    @property
    def stored(self) -> StoredFile:
        """What is fetched."""
        return self.packed or self.raw


class Item(NamedTuple):
    """Files that come and go together; the first names them all."""

    parts: tuple[ItemPart, ...]
    compression: str | None = None
    refresh: bool = False  # fetch it even if it is there
    edition: str = ""  # the edition of the dataset that it belongs to
    number: int | None = None  # of a shard, in the index of its edition
    is_index: bool = False  # it is the index itself, which makes an edition
    validates: bool = False  # files that others put there are digested before they are used
    format: str | None = None  # of a shard that its format unpacks, for these columns
    columns: tuple[str, ...] | None = None

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
        return sum(part.raw.estimate if part.raw.num_bytes is None else part.raw.num_bytes for part in self.parts)

    @property
    def packed_bytes(self) -> int:
        """The bytes of the compressed files, which are gone after unpacking unless they are kept."""
        return sum(part.packed.num_bytes or 0 for part in self.parts if part.packed)


class Want(NamedTuple):
    """An entry of a plan: which stream, what, in how many batches, and whether it lies there already."""

    stream: int
    item: Item
    ahead: int
    is_present: bool
