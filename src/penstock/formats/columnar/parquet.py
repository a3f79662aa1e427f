"""Parquet files, read where they are: a shard is a row group or some small ones, unpacked into a file of columns."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, PenstockError
from penstock.extras import require
from penstock.formats.columnar.arrow_types import describe_schema, pyarrow
from penstock.formats.columnar.footer import (
    MAGIC,
    FileHead,
    RowGroup,
    parse_footer,
    read_row_groups,
    write_row_groups,
)
from penstock.formats.columnar.format import (
    ColumnarFormat,
    corrupt,
    join_spans,
    read_types,
    reading_entry,
    translated,
    write_shard,
)
from penstock.formats.columnar.inputs import SpansInput
from penstock.formats.columnar.thrift import CompactReader, ThriftError
from penstock.formats.columnar.write import CHUNK_BYTES
from penstock.formats.files import ScannedFile, ScannedShard
from penstock.index.model import Column
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

    from penstock.formats.columnar.footer import ColumnChunk
    from penstock.formats.columnar.types import ColumnType
    from penstock.formats.files import SpanBytes, StoredObject
    from penstock.index.model import ShardInfo

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
            columns = _describe(head, file.name)
        except ThriftError as error:
            raise corrupt(file.name, f"has a footer that cannot be read: {error}") from error
        filled = [group for group in row_groups if group.num_rows]
        for group in filled:
            _check_row_group(group, footer_begin, file.name)
        shards = tuple(map(_to_shard, _join_small(filled)))
        return ScannedFile(
            tuple(Column(name, str(kind)) for name, kind in columns),
            shards,
            {"head": head.to_json(), "types": [[name, kind.to_json()] for name, kind in columns]},
        )

    def spans(self, info: ShardInfo, columns: tuple[str, ...] | None) -> tuple[Span, ...]:
        """Return where the wanted columns of all row groups lie, near ones together."""
        head, groups = _read_entry(info)
        chunks = [chunk for group in groups for chunk in group.chunks if _is_wanted(chunk, columns)]
        span = info.parts[0].span
        end = span.object_bytes if span is not None and span.object_bytes is not None else None
        bounds = [(chunk.begin, chunk.begin + chunk.num_bytes + head.hidden_bytes) for chunk in chunks]
        return join_spans(bounds, end, info.name)

    def unpack(self, info: ShardInfo, columns: tuple[str, ...] | None, stored: SpanBytes, out: BinaryIO) -> None:
        """Decode some rows at a time and write their buffers."""
        head, groups = _read_entry(info)
        types = read_types(info, columns)
        raw_bytes = info.parts[0].raw.num_bytes  # of all columns; batches of few of them are joined
        batch_rows = max(1, min(info.num_samples, info.num_samples * CHUNK_BYTES // max(raw_bytes, 1)))
        names = [name for name, _ in types]
        pq = require("pyarrow.parquet", extra="parquet", purpose="reading Parquet files")
        footer = MAGIC + head.footer(info.num_samples, info.details)

        def batches() -> Iterator[Any]:
            metadata = pq.read_metadata(pyarrow().BufferReader(footer))
            # It would hold on to the compressed bytes of the last group.
            settings = {"pre_buffer": False, "page_checksum_verification": True}
            with pq.ParquetFile(SpansInput(stored), metadata=metadata, **settings) as file:
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


def _describe(head: FileHead, name: str) -> tuple[tuple[str, ColumnType], ...]:
    try:
        return _describe_once(head)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}", path=name) from error
    except PenstockError:
        raise
    except Exception as error:  # pyarrow's errors are of many classes
        raise corrupt(name, f"has a schema that cannot be read: {error}") from error


@lru_cache(maxsize=64)
def _describe_once(head: FileHead) -> tuple[tuple[str, ColumnType], ...]:
    pq = require("pyarrow.parquet", extra="parquet", purpose="reading Parquet files")
    metadata = pq.read_metadata(pyarrow().BufferReader(MAGIC + head.footer(0, write_row_groups([]))))
    return describe_schema(metadata.schema.to_arrow_schema())


def _check_row_group(group: RowGroup, end: int, name: str) -> None:
    if group.num_rows > _MOST_ROWS or group.raw_bytes > 1 << 50:
        raise corrupt(name, f"has a row group of {group.num_rows} rows, which is impossible")
    begin, group_end = group.bounds
    if begin < len(MAGIC) or group_end > end:
        raise corrupt(name, "has a row group that lies outside of the file")


def _join_small(groups: list[RowGroup]) -> Iterator[list[RowGroup]]:
    """Join neighbours until they are of some size."""
    together: list[RowGroup] = []
    for group in groups:
        together.append(group)
        if sum(each.raw_bytes for each in together) >= _SMALLEST_SHARD:
            yield together
            together = []
    if together:
        yield together


def _to_shard(groups: list[RowGroup]) -> ScannedShard:
    bounds = [group.bounds for group in groups]
    return ScannedShard(
        num_samples=sum(group.num_rows for group in groups),
        span=Span(min(begin for begin, _ in bounds), max(end for _, end in bounds)),
        raw_bytes=sum(group.raw_bytes for group in groups) + 1024,
        is_exact=False,
        details=write_row_groups(groups),
    )


def _read_entry(info: ShardInfo) -> tuple[FileHead, list[RowGroup]]:
    """Return what the index says of a shard."""
    with reading_entry(info):
        return _read_head(info), read_row_groups(CompactReader(info.details), ())


def _read_head(info: ShardInfo) -> FileHead:
    """Return what the index says of all row groups of a file."""
    with reading_entry(info):
        head = info.layout.settings["head"]
        return _parse_head(head["version"], head["schema"], head["created_by"], tuple(head["arrow_schema"]))


@lru_cache(maxsize=64)
def _parse_head(version: int, schema: str, created_by: str, arrow_schema: tuple[str, ...]) -> FileHead:
    """Parse what every shard of a file needs, once for all of them."""
    return FileHead.from_json(
        {"version": version, "schema": schema, "created_by": created_by, "arrow_schema": arrow_schema}
    )


# --- Spans ----------------------------------------------------------------------------------------------------


def _is_wanted(chunk: ColumnChunk, columns: tuple[str, ...] | None) -> bool:
    """Return whether a column has this leaf, by the name of the leaf, as pyarrow names it: dots in names are kept."""
    if columns is None:
        return True
    path = ".".join(chunk.path)
    return any(path == name or path.startswith(f"{name}.") for name in columns)
