"""The seam between formats and the rest: what it takes to open, read and build one shard."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from penstock.errors import ConfigError, meant
from penstock.formats.encodings.base import IMAGE_DECODERS
from penstock.formats.rows import Rows as Rows  # noqa: TC001  others import both from here
from penstock.formats.rows import ShardBytes as ShardBytes  # noqa: TC001
from penstock.index.entry import EntryFormat
from penstock.index.entry import formats as formats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Buffer

    from penstock.formats.body import ChunkPool
    from penstock.formats.encodings.base import ImageDecoder
    from penstock.index.model import Column, IndexedShard, ShardLayout
    from penstock.types import Columns, Int64Array, Sample, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to turn stored values into Python values."""

    image_decoder: ImageDecoder = "pil"
    allow_unsafe_types: bool = False
    columns: tuple[str, ...] | None = None  # None: all of them
    # Reads `pkl` columns without running code of their writer. States compare the text of these options.
    unpickle: Callable[[bytes], Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.image_decoder not in IMAGE_DECODERS:
            known = ", ".join(IMAGE_DECODERS)
            raise ConfigError(f"unknown image decoder {self.image_decoder!r}: use one of {known}")


class ShardReader(Protocol):
    """One open shard. Not for use by two threads at once; values never point into its memory."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def read(self, rows: Rows) -> list[Sample]:
        """Return the samples at these rows, in this order."""

    def read_columns(self, rows: Rows) -> Columns:
        """Return the same by column: an array where all values allow it, else a list."""

    def close(self) -> None:
        """Let go of the shard's bytes."""


@runtime_checkable
class DropsPages(Protocol):
    """A `ShardReader` of a mapped file, which takes memory for as long as its pages are mapped."""

    def drop_pages(self) -> None:
        """Take out of memory what was read, if it can be read again: the shard stays open."""


class ShardBuilder(Protocol):
    """One shard in the making."""

    sample_overhead: int  # what a sample counts against the size limit besides its encoded bytes

    @property
    def num_samples(self) -> int:
        """The number of samples so far."""

    @property
    def num_bytes(self) -> int:
        """What counts against the size limit so far."""

    def encode(self, sample: Sample) -> bytes:
        """Return the stored form of a sample, or raise an error that names the column; the shard stays as it was."""

    def append(self, encoded: bytes) -> None:
        """Add an encoded sample, unless the shard would outgrow its format."""

    def extend(self, encoded: Sequence[bytes]) -> None:
        """Add encoded samples that are small together and far from outgrowing the format."""

    def build(self) -> list[list[Buffer]]:
        """Return the bytes of each part of the shard, in pieces that belong together, valid until `release`."""

    def release(self) -> None:
        """Release the memory; the shard is written."""


class RowRanges(Protocol):
    """Reads a few rows of a shard that is far away: their bytes alone, in two steps. Spans are of the first part."""

    def spans_to_locate(self, info: IndexedShard, rows: Int64Array) -> list[Span]:
        """Return what to read first, to learn where these rows are."""

    def spans_of_rows(self, info: IndexedShard, rows: Int64Array, found: Sequence[bytes]) -> list[Span]:
        """Return from what was read where the rows are; bytes that cannot be are a `CorruptShardError`."""

    def open(self, info: IndexedShard, pieces: Sequence[bytes], options: ReadOptions) -> ShardReader:
        """Return a reader of these rows alone, numbered from 0, of the bytes of their spans."""


@runtime_checkable
class GuessesRows(Protocol):
    """A `RowRanges` that guesses where rows are, which saves a round trip where the guess is right."""

    def likely_spans(self, info: IndexedShard, rows: Int64Array) -> list[Span] | None:
        """Return where the index lets one expect these rows: a span for each, or one for all of them; or None.

        That is read at the same time as what locates them.
        """


class ShardFormat(EntryFormat, Protocol):
    """How shards of one kind are laid out. A format inherits this, and with it how its shards stand in an index."""

    row_ranges: RowRanges | None = None  # None: shards are fetched whole

    def columns(self, encodings: Mapping[str, str]) -> tuple[Column, ...]:  # noqa: ARG002
        """Check the columns a user asked for and put them in stored order; by default, refuse to be written."""
        raise self._read_only()

    def infer(self, sample: Sample) -> dict[str, str]:  # noqa: ARG002
        """Choose the encoding of each column by the values of a first sample; by default, refuse to be written."""
        raise self._read_only()

    def check(self, layout: ShardLayout, options: ReadOptions) -> None:
        """Raise if shards of this layout cannot, or should not, be read with these options: columns are not there."""
        names = [column.name for column in layout.columns]
        for name in options.columns or ():
            if name not in names:
                raise ConfigError(
                    f"there is no column {name!r}{meant(name, names)}: the dataset has {', '.join(names)}"
                )

    def open(self, parts: Sequence[ShardBytes], info: IndexedShard, options: ReadOptions) -> ShardReader:
        """Open a shard whose parts are at hand, raw and of the declared size."""

    def open_checked(self, parts: Sequence[ShardBytes], info: IndexedShard, options: ReadOptions) -> ShardReader:
        """Open a shard whose samples all lie where they should; for formats where `open` looks only at what is read."""
        return self.open(parts, info, options)

    def builder(self, layout: ShardLayout, pool: ChunkPool) -> ShardBuilder:  # noqa: ARG002
        """Begin a shard that takes its memory from the pool; by default, refuse to be written."""
        raise self._read_only()

    def _read_only(self) -> ConfigError:
        return ConfigError(f"{type(self).__name__} can only be read: write MDS or one of the text formats")


def get_format(name: str) -> ShardFormat:
    """Find a format by the name it has in an index."""
    return cast("ShardFormat", formats.get(name)())
