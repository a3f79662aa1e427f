"""Parquet files, read where they are: a shard is a row group or some small ones, unpacked into a file of columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from penstock.blocks.block import Block
from penstock.errors import ConfigError
from penstock.extras import require
from penstock.formats.columnar.arrow_types import checked, describe_schema, naming, pyarrow
from penstock.formats.columnar.footer import (
    MAGIC,
    CompactReader,
    FileHead,
    RowGroup,
    ThriftError,
    parse_footer,
    read_row_groups,
    write_row_groups,
)
from penstock.formats.columnar.format import (
    ColumnarFormat,
    SpansInput,
    block_of,
    corrupt,
    describe_file,
    join_shard,
    join_spans,
    open_for_arrow,
    read_types,
    reading_entry,
    rows_at_once,
    translated,
    write_shard,
)
from penstock.formats.columnar.write import CHUNK_BYTES, join_small
from penstock.threads import WorkerThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import BinaryIO

    from penstock.formats.columnar.footer import ColumnChunk
    from penstock.formats.columnar.format import LocalObject
    from penstock.formats.columnar.types import ColumnType
    from penstock.formats.files import ScannedFile, ScannedShard, SpanBytes, StoredObject
    from penstock.index.model import IndexedShard
    from penstock.types import Span

_TAIL_BYTES = 16 << 10  # what is asked for first: most footers are shorter
_LONGEST_FOOTER = 1 << 30
_SMALLEST_SHARD = 1 << 20  # unpacked; row groups that are smaller are joined
_MOST_ROWS = 1 << 40
_ENCRYPTED_MAGIC = b"PARE"


class ParquetFormat(ColumnarFormat):
    """Finds row groups in footers, fetches the columns that are asked for, and unpacks them with pyarrow."""

    suffixes = (".parquet", ".pq", ".parq")
    magic = MAGIC
    tail_bytes = _TAIL_BYTES

    def scan(self, file: StoredObject, settings: Mapping[str, Any]) -> ScannedFile:  # noqa: ARG002
        """Read the footer."""
        footer, footer_begin = _read_footer(file)
        try:
            head, row_groups = parse_footer(footer)
        except ThriftError as error:
            raise corrupt(file.name, f"has a footer that cannot be read: {error}") from error
        shards = _shards(row_groups, footer_begin, file.name)
        return describe_file(file.name, partial(_describe_once, head), shards, {"head": head.to_json()})

    def spans(self, info: IndexedShard, columns: tuple[str, ...] | None) -> tuple[Span, ...]:
        """Return where the wanted columns of all row groups lie, near ones together."""
        head, groups = _read_entry(info)
        chunks = [chunk for group in groups for chunk in group.chunks if _is_wanted(chunk, columns)]
        span = info.parts[0].span
        end = span.object_bytes if span is not None and span.object_bytes is not None else None
        bounds = [(chunk.begin, chunk.begin + chunk.num_bytes + head.hidden_bytes) for chunk in chunks]
        return join_spans(bounds, end, info.name)

    def unpack(self, info: IndexedShard, columns: tuple[str, ...] | None, stored: SpanBytes, out: BinaryIO) -> None:
        """Decode some rows at a time and write their buffers."""
        head, groups = _read_entry(info)
        types = read_types(info, columns)
        raw_bytes = info.parts[0].raw.num_bytes  # of all columns; batches of few of them are joined
        batch_rows = max(1, min(info.num_samples, info.num_samples * CHUNK_BYTES // max(raw_bytes, 1)))
        names = [name for name, _ in types]
        footer = MAGIC + head.footer(info.num_samples, info.details)

        def batches() -> Iterator[Any]:
            metadata = _parquet().read_metadata(pyarrow().BufferReader(footer))
            # It would hold on to the compressed bytes of the last group.
            settings = {"pre_buffer": False, "page_checksum_verification": True}
            with _parquet().ParquetFile(SpansInput(stored), metadata=metadata, **settings) as file:
                for number, group in enumerate(groups):  # one by one: dictionaries within lists cannot be joined
                    decoded = file.iter_batches(batch_rows, [number], names, use_threads=False)
                    yield from translated(decoded, info.name, f" in its row group at byte {group.bounds[0]}")

        write_shard(batches(), types, info, out)


# --- Footers --------------------------------------------------------------------------------------------------


def _read_footer(file: StoredObject) -> tuple[bytes, int]:
    """Return the footer and where it begins: mostly by one request, else by two."""
    size = file.num_bytes
    if size < 12:
        raise corrupt(file.name, f"is not a Parquet file: it has only {size} bytes")
    begin = max(0, size - _TAIL_BYTES)
    tail = file.read(begin, size)
    if tail[-4:] == _ENCRYPTED_MAGIC:
        raise corrupt(file.name, "is encrypted, and penstock cannot read encrypted files")
    if tail[-4:] != MAGIC:
        raise corrupt(file.name, "is not a Parquet file, or was cut off: it does not end like one")
    length = int.from_bytes(tail[-8:-4], "little")
    footer_begin = size - 8 - length
    if footer_begin < len(MAGIC) or length > _LONGEST_FOOTER:
        raise corrupt(
            file.name, f"has a footer of {length} bytes, which is more than the file can hold or penstock accepts"
        )
    if footer_begin < begin:
        tail = file.read(footer_begin, begin) + tail
        begin = footer_begin
    return tail[footer_begin - begin : -8], footer_begin


@lru_cache(maxsize=64)
def _describe_once(head: FileHead) -> tuple[tuple[str, ColumnType], ...]:
    metadata = _parquet().read_metadata(pyarrow().BufferReader(MAGIC + head.footer(0, write_row_groups([]))))
    return describe_schema(metadata.schema.to_arrow_schema())


def _shards(groups: Sequence[RowGroup], end: int, name: str) -> Iterator[ScannedShard]:
    """Join small row groups, all of which lie before an end."""
    filled = [group for group in groups if group.num_rows]
    for group in filled:
        _check_row_group(group, end, name)
    yield from map(_to_shard, join_small(filled, attrgetter("raw_bytes"), _SMALLEST_SHARD))


def _check_row_group(group: RowGroup, end: int, name: str) -> None:
    if group.num_rows > _MOST_ROWS or group.raw_bytes > 1 << 50:
        raise corrupt(name, f"has a row group of {group.num_rows} rows, which is impossible")
    begin, group_end = group.bounds
    if begin < len(MAGIC) or group_end > end:
        raise corrupt(name, "has a row group that lies outside of the file")


def _to_shard(groups: list[RowGroup]) -> ScannedShard:
    num_rows, raw_bytes = (sum(map(attrgetter(name), groups)) for name in ("num_rows", "raw_bytes"))
    return join_shard(num_rows, [group.bounds for group in groups], raw_bytes, write_row_groups(groups))


def _read_entry(info: IndexedShard) -> tuple[FileHead, list[RowGroup]]:
    """Return what the index says of a shard."""
    with reading_entry(info):
        head = info.layout.settings["head"]
        parsed = FileHead.parse(head["version"], head["schema"], head["created_by"], tuple(head["arrow_schema"]))
        return parsed, read_row_groups(CompactReader(info.details), ())


# --- Spans ----------------------------------------------------------------------------------------------------


def _is_wanted(chunk: ColumnChunk, columns: tuple[str, ...] | None) -> bool:
    """Return whether a column has this leaf, by the name of the leaf, as pyarrow names it: dots in names are kept."""
    if columns is None:
        return True
    path = ".".join(chunk.path)
    return any(path == name or path.startswith(f"{name}.") for name in columns)


_READ_TAIL_BYTES = 64 << 10
_PIECES_OF_GROUP = 4


def read_footer(opened: LocalObject, where: str) -> Any:
    """Read the footer of a file."""
    with naming(where):
        opened.fetch_tail(_READ_TAIL_BYTES)
        return _parquet().read_metadata(SpansInput(opened))


def as_condition(given: Any) -> Any:
    """Take a condition as pyarrow writes it, or as a list of comparisons."""
    if given is None:
        return None
    try:
        return _parquet().filters_to_expression(given)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"filter={given!r} is not a condition: pass pc.field('score') > 0.5 with pyarrow.compute as pc, or"
            " [('score', '>', 0.5)]"
        ) from error


@dataclass(frozen=True, slots=True)
class ParquetReading:
    """Reads rows of one file.

    Args:
        open: Opens the file.
        where: What it is called in errors.
        footer: Its footer.
        columns: The columns that are read; None for all.
        condition: The condition that rows have to fit, if there is one.
    """

    open: Callable[[], LocalObject]
    where: str
    footer: Any
    columns: Sequence[str] | None = None
    condition: Any = None

    def blocks(self, groups: Sequence[int], row: int) -> Iterator[tuple[Block, int]]:
        """Read blocks of some row groups from a row on, each with how many stored rows it was made of."""
        ends = list(accumulate(self.footer.row_group(group).num_rows for group in range(self.footer.num_row_groups)))
        parts = [partial(self._group, group, ends) for group in groups if ends[group] > row]
        with naming(self.where):
            for begin, batch in read_ahead(parts):
                end = begin + batch.num_rows
                if begin > row:  # these are in groups that do not fit
                    yield Block(), begin - row
                if end > row:
                    part = checked(batch, begin, self.where).slice(max(0, row - begin))
                    yield block_of(part, self.condition, self.columns), part.num_rows
                    row = end
            if row < self.footer.num_rows:
                yield Block(), self.footer.num_rows - row

    def fitting_groups(self) -> Sequence[int]:
        """Find the row groups that may have rows which fit the condition, by what the footer tells of their values."""
        if self.condition is None:
            return range(self.footer.num_row_groups)
        dataset = require("pyarrow.dataset", extra="parquet", purpose="reading Parquet files by a condition")
        opened = self.open()
        with naming(self.where):
            opened.fetch_tail(_READ_TAIL_BYTES)
            stored = pyarrow().PythonFile(SpansInput(opened), mode="r")
            fragment = dataset.ParquetFileFormat().make_fragment(stored)
            try:
                found = fragment.subset(self.condition, schema=self.footer.schema.to_arrow_schema()).row_groups
            except pyarrow().ArrowException as error:
                raise ConfigError(
                    f"filter={self.condition} does not fit {self.where}: {error}", path=self.where
                ) from error
        return [group.id for group in found]

    def _group(self, group: int, ends: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Read the record batches of a row group, whose columns are fetched together, and the first row of each."""
        wanted = None if self.columns is None else [*self.columns, *self._filtered()]
        stored = open_for_arrow(self.open())
        options = {"pre_buffer": isinstance(stored, SpansInput), "page_checksum_verification": True}
        reading = naming(self.where, f", row group {group}, cannot be read", path=self.where)
        with reading, _parquet().ParquetFile(stored, metadata=self.footer, **options) as reader:
            about = self.footer.row_group(group)
            num_rows = rows_at_once(about.total_byte_size, about.num_rows)
            begin = ends[group] - about.num_rows
            for batch in reader.iter_batches(num_rows, row_groups=[group], columns=wanted):
                yield begin, batch
                begin += batch.num_rows

    def _filtered(self) -> list[str]:
        """Name the columns that the condition may need and that are not read anyway."""
        if self.condition is None:
            return []
        text, columns = str(self.condition), self.columns or ()
        return [name for name in self.footer.schema.to_arrow_schema().names if name in text and name not in columns]


def cut_groups(groups: Sequence[tuple[int, float]], num_bytes: int) -> list[int]:
    """Return the rows where parts begin, of row groups of so many rows and bytes each.

    A part within a group costs reading all of the group, so a group is not cut into many.
    """
    cuts: list[int] = []
    row, filled = 0, math.inf  # the first row is a cut
    for num_rows, size in groups:
        pieces = max(1, min(_PIECES_OF_GROUP, num_rows, int(size // num_bytes)))
        if pieces > 1 or filled + size > num_bytes:
            cuts += [row + num_rows * piece // pieces for piece in range(pieces)]
            filled = 0.0
        filled += size / pieces
        row += num_rows
    return cuts


def read_ahead(parts: Sequence[Callable[[], Iterator[Any]]]) -> Iterator[Any]:
    """Yield the items of several iterators, one after the other, while a thread already begins the next one."""
    if len(parts) < 2:
        for part in parts:
            yield from part()
        return
    threads = WorkerThreads(1, "penstock-row-group")
    try:
        ahead = threads.submit(_begin, parts[0])
        for following in (*parts[1:], None):
            begun = ahead.result()
            if following is not None:
                ahead = threads.submit(_begin, following)
            yield from begun
    finally:
        threads.shutdown()


def _begin(part: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Begin an iterator, so that what its first item takes is done."""
    items = part()
    first = [item for item in (next(items, None),) if item is not None]
    return chain(first, items)


def _parquet() -> Any:
    return require("pyarrow.parquet", extra="parquet", purpose="reading Parquet files")
