"""The seam of formats that other programs write: how a file of theirs is cut into shards, fetched, unpacked and read.

A file is scanned once, which gives its shards: a row group, a span of lines, a tar. What it takes to find and read one
of them stands in the index, so fetching a shard takes no other byte of its file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol, cast, get_args

from penstock.errors import ConfigError
from penstock.formats.base import ShardFormat, get_format
from penstock.formats.content import RowPlaces
from penstock.formats.rows import FileBytes as FileBytes  # noqa: TC001  others import it from here
from penstock.index.entry import formats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.blocks.stage import Stage
    from penstock.codecs.stream import FrameStart
    from penstock.formats.base import ReadOptions, ShardReader
    from penstock.formats.content import FileContent
    from penstock.index.model import Column, IndexedShard
    from penstock.types import Span


OnError = Literal["raise", "skip"]


class StoredObject(Protocol):
    """One object of a store, or a file of this machine, as a scan sees it. Of a compressed one, its content."""

    name: str  # below the root of the dataset, for errors
    num_bytes: int  # as it is stored
    is_compressed: bool  # it can only be read from its beginning, and cut into shards where frames begin
    seek_bytes: int  # asking for a range takes as long as reading so many bytes in order

    @property
    def frame_starts(self) -> Sequence[FrameStart]:
        """Of a compressed one, where the frames begin that `chunks` has come to, as far as they are far apart."""

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes `[begin, end)`; asking beyond its end, or of a compressed one, is an error."""

    def chunks(self) -> Iterator[bytes]:
        """Return all of it, in order, some MB at a time."""


class SpanBytes(Protocol):
    """What was fetched of one object: some spans of it, at the places that they have in the object."""

    name: str  # of the object, for errors
    num_bytes: int  # of the whole object

    def read(self, begin: int, end: int) -> memoryview:
        """Return the bytes `[begin, end)`, which lie within one of the spans; others are a `CorruptShardError`."""


@dataclass(frozen=True, slots=True)
class ScannedShard:
    """One shard of a file."""

    num_samples: int
    span: Span  # of the object that holds it; of a compressed object, of its content
    raw_bytes: int  # of the file that readers open: exact, or an estimate
    is_exact: bool = True
    details: bytes = b""  # opaque to all but the format; kept in the index for each shard, so short


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """What a scan found in one file."""

    columns: tuple[Column, ...]  # the encoding is a type in the words of the format
    shards: tuple[ScannedShard, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)  # JSON: what all shards of the file share


@dataclass(slots=True, kw_only=True)
class FilesReading:
    """How the files of a source are read in order, and what is known of them."""

    columns: tuple[str, ...] | None = None  # None: all of them
    on_error: OnError = "raise"  # whether rows that cannot be parsed are errors, or left out
    settings: Mapping[str, Any] = field(default_factory=dict)  # what users say of the format, such as types= of a csv
    first: Any = None  # what the file that was opened first says of all: its header
    places: dict[str, RowPlaces] = field(default_factory=dict)  # of each file, by its name

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise ConfigError(f"on_error={self.on_error!r} is unknown: use 'raise' or 'skip'")

    def places_in(self, name: str) -> RowPlaces:
        """Return where some rows of a file begin, as far as that is known; more may be added."""
        return self.places.setdefault(name, RowPlaces())


class FileFormat(ShardFormat, Protocol):
    """A format of files that other programs write. It is never written here: what it inherits says so.

    The functions of `codecs.unpack` (`drop_pages`, `release`, `check_whole`) take all kinds of `FileBytes`.
    """

    suffixes: tuple[str, ...] = ()  # of names, such as (".parquet", ".pq"), without those of compression
    magic: bytes = b""  # bytes near its beginning, if there are any that tell
    magic_at: int = 0  # where they stand
    has_schema: bool = True  # the columns of a file hold for all its rows, so all files of a dataset must agree on them
    setting_names: tuple[str, ...] = ()  # what users may say of it, besides `columns`: types= of a csv
    tail_bytes: int = 0  # how much of the end of a file a scan reads first: it is fetched for many files at once
    head_bytes: int = 0  # the same of its beginning, which a scan asks for itself; it reads little else

    def scan(self, file: StoredObject, settings: Mapping[str, Any]) -> ScannedFile:
        """Find the shards of a file: small ones joined, huge ones split where the format allows.

        `settings` is what users said, by the names in `setting_names`. A file that is not of this format, or broken, is
        a `CorruptShardError` that names it.
        """

    def spans(self, info: IndexedShard, columns: tuple[str, ...] | None) -> tuple[Span, ...]:  # noqa: ARG002
        """Return the bytes of the object to fetch for these columns, sorted; by default all of the shard."""
        from penstock.types import Span

        span = info.parts[0].span
        return () if span is None else (Span(span.offset, span.offset + span.num_bytes),)

    def unpack(self, info: IndexedShard, columns: tuple[str, ...] | None, stored: SpanBytes, out: BinaryIO) -> None:
        """Write the file that readers open, of a shard whose `spans` are at hand; if it has a `raw_version`."""
        problem = f"{type(self).__name__} reads shards as they are stored"
        raise NotImplementedError(problem)

    def open(self, parts: Sequence[FileBytes], info: IndexedShard, options: ReadOptions) -> ShardReader:
        """Open a shard by its one part: what `unpack` wrote or, without that, the bytes of its span."""

    def blocks(self, file: FileContent, reading: FilesReading, row: int = 0) -> Stage:  # noqa: ARG002
        """Read a file in order from a row on, for those who need neither its shards nor a cache."""
        raise ConfigError(f"{file.name} cannot be read in order: {type(self).__name__} reads files by their shards")


@cache
def get_file_format(name: str) -> FileFormat:
    """Find a format of files by its name, or say which there are."""
    form = get_format(name) if name in formats else None
    if not hasattr(form, "scan"):
        raise ConfigError(f"unknown file format {name!r}: use one of {', '.join(file_formats())}")
    return cast("FileFormat", form)


@cache
def file_formats() -> tuple[str, ...]:
    """Name all formats of files that other programs write."""
    return tuple(name for name in formats.names() if hasattr(formats.get(name), "scan"))
