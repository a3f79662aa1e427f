"""JSON: one object a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.errors import CorruptShardError, IndexFieldError
from penstock.formats.text import TextBuilder, TextFormat, TextReader
from penstock.index.model import Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.formats.base import ReadOptions, ShardBytes
    from penstock.formats.body import ChunkPool
    from penstock.index.model import ShardInfo, ShardLayout
    from penstock.types import Sample


class JSONFormat(TextFormat):
    """Opens and builds JSON shards."""

    column_fields = ("columns",)

    def dump_columns(self, columns: Sequence[Column]) -> dict[str, Any]:
        """Give one object of names and encodings."""
        return {"columns": {column.name: column.encoding for column in columns}}

    def parse_columns(self, fields: Mapping[str, Any]) -> tuple[Column, ...]:
        """Understand this object."""
        columns = fields["columns"]
        if not isinstance(columns, dict):
            raise IndexFieldError("has 'columns' that is not an object")
        return tuple(map(Column, columns, columns.values()))

    def open(self, parts: Sequence[ShardBytes], info: ShardInfo, options: ReadOptions) -> TextReader:
        """Open a shard."""
        self.check(info.layout, options)
        shard, newline = info.name, (info.layout.settings.get("newline") or "\n").encode()

        def parse(lines: list[bytes], rows: list[int]) -> list[Sample]:
            return _parse_lines([line.removesuffix(newline) for line in lines], rows, shard)

        return TextReader(parts, info, parse, options)

    def builder(self, layout: ShardLayout, pool: ChunkPool) -> JSONBuilder:
        """Begin a shard."""
        return JSONBuilder(layout, pool)


class JSONBuilder(TextBuilder):
    """One JSON shard in the making."""

    _encode = json.JSONEncoder().encode

    def line(self, values: dict[str, Any]) -> str:
        """Give the JSON text; its keys are sorted because the columns are."""
        return self._encode(values)


def _parse_lines(lines: list[bytes], rows: list[int], shard: str) -> list[Sample]:
    try:
        # One call for the whole batch. A raw newline is no part of any JSON string, so lines cannot flow together.
        samples: list[Any] = json.loads(b"[" + b"\n,\n".join(lines) + b"]")
    except (ValueError, RecursionError):
        samples = []
    if len(samples) == len(lines) and all(type(sample) is dict for sample in samples):
        return samples
    return [_parse_line(line, row, shard) for line, row in zip(lines, rows, strict=True)]


def _parse_line(line: bytes, row: int, shard: str) -> Sample:
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorruptShardError(f"{shard}, row {row}: the line is not JSON: {error}", shard=shard, row=row) from error
    if type(sample) is not dict:
        raise CorruptShardError(f"{shard}, row {row}: the line is not a JSON object", shard=shard, row=row)
    return sample
