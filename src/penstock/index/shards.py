"""One shard of a dataset as plain values: its files, their sizes and digests, how it is laid out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import BadIndexError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Offsets inside a shard are 32-bit unsigned, so no raw file can be longer.
MAX_SHARD_BYTES = 2**32 - 1


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One stored file: its name below the dataset's folder, its size, its digests by algorithm.

    The size of a raw file may be an estimate, if it shows only when the file is unpacked.
    """

    basename: str
    num_bytes: int
    digests: Mapping[str, str] = field(default_factory=dict)
    is_exact: bool = True

    @property
    def known_bytes(self) -> int | None:
        """The size, if it is known."""
        return self.num_bytes if self.is_exact else None


@dataclass(frozen=True, slots=True)
class ObjectSpan:
    """The bytes of a stored object, by its name below the dataset's folder, from `offset` on.

    Where the index says so, the whole object must still have this size and version when it is read.
    """

    basename: str
    offset: int
    num_bytes: int
    object_bytes: int | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a shard in its raw form and, if the dataset is compressed, as it is stored.

    A part may be stored within a larger object, as a member of a tar file is: `span` says where. It is still a file of
    its own wherever it is cached, under a name that no other part of the dataset has; size and digests are those of
    the span.
    """

    raw: FileInfo
    packed: FileInfo | None = None
    span: ObjectSpan | None = None

    def __post_init__(self) -> None:
        span = self.span
        if span is not None and not (span.offset >= 0 and span.num_bytes == self.stored.num_bytes):
            raise BadIndexError(
                f"{self.stored.basename} of {self.stored.num_bytes} bytes cannot be the {span.num_bytes} bytes of"
                f" {span.basename} that begin at {span.offset}",
                basename=self.stored.basename,
            )

    @property
    def stored(self) -> FileInfo:
        """The file that the writer left behind and that is fetched."""
        return self.packed or self.raw


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name and encoding, and the bytes of each value if they are always as many."""

    name: str
    encoding: str
    num_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """What all shards of one writer have in common: everything needed to build or read one."""

    format: str
    columns: tuple[Column, ...]
    compression: str | None = None
    hashes: tuple[str, ...] = ()
    size_limit: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)  # of the format alone, such as a separator


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """One shard: how many samples, in which files, laid out how.

    The first part names the shard: MDS shards have one part, text shards a data part and a meta part.
    """

    layout: ShardLayout
    num_samples: int
    parts: tuple[Part, ...]
    details: bytes = b""  # for its format alone, such as where its columns begin

    @property
    def name(self) -> str:
        """The raw name of the first part, which stands for the whole shard."""
        return self.parts[0].raw.basename

    def renamed(self, rename: Callable[[str], str]) -> IndexedShard:
        """Return the same shard whose files have other names."""

        def move(file: Any) -> Any:
            return replace(file, basename=rename(file.basename))

        parts = [Part(move(it.raw), it.packed and move(it.packed), it.span and move(it.span)) for it in self.parts]
        return replace(self, parts=tuple(parts))
