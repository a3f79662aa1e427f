"""JSON lines: one object a line, whose keys may differ from line to line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.blocks.block import to_columns
from penstock.codecs.compress import parse_compression
from penstock.codecs.stream import STREAM_SUFFIXES
from penstock.errors import ColumnTypeError, ColumnValueError, ConfigError, CorruptShardError
from penstock.formats.files import ScannedFile
from penstock.formats.lines.cut import RETURN, BadRow, LineFinder
from penstock.formats.lines.format import LineBlocks, LineFormat
from penstock.formats.lines.json_values import (
    ValueBlocks,
    first_character,
    json_decoder,
    parse_objects,
    parse_row,
    pick_fields,
)
from penstock.formats.lines.scan import LineScan, scan_lines, to_shards
from penstock.formats.shard_files import OneFileShard, ShardBlocks, ShardFileFormat
from penstock.index.model import Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.blocks.stage import Stage
    from penstock.formats.content import FileContent
    from penstock.formats.files import FilesReading, StoredObject
    from penstock.formats.lines.cut import RowBlock, RowFinder
    from penstock.types import Columns, Sample


# So many first rows say what the columns are. Keys that come later are in the samples all the same.
_ROWS_LOOKED_AT = 100
_ENCODING = "json"
_OPENING, _CLOSING = b"{}"


class JSONLinesFormat(LineFormat):
    """Scans and opens files of JSON lines."""

    suffixes = (".jsonl", ".ndjson", ".jsonlines")
    has_schema = False

    def scan(self, file: StoredObject, settings: Mapping[str, Any]) -> ScannedFile:  # noqa: ARG002
        """Count the lines, and look at the first ones for their keys."""
        scan = scan_lines(file, self.finder({}))
        names = _names_in(scan, file.name)
        shards = to_shards(scan, file)
        return ScannedFile(tuple(Column(name, _ENCODING) for name in names), shards)

    def finder(self, settings: Mapping[str, Any]) -> RowFinder:  # noqa: ARG002
        """Find all lines that are not blank."""
        return LineFinder(skips_blank=True)

    def parser(self, columns: tuple[Column, ...], wanted: tuple[str, ...] | None) -> JSONParser:
        """Make samples of some keys."""
        return JSONParser(tuple(column.name for column in columns), wanted)

    def parser_in_order(self, name: str, header: bytes | None, reading: FilesReading) -> JSONParser:  # noqa: ARG002
        """Make samples of those keys that are wanted."""
        return JSONParser((), reading.columns)

    def blocks(self, file: FileContent, reading: FilesReading, row: int = 0) -> Stage:
        """Read lines, or the values of a document: the first character tells, unless `jsonl` is False."""
        first = first_character([file.head()]) or first_character(file.read())
        if reading.settings.get("jsonl", True) and first != "[":
            return LineBlocks(file, self, reading, row)
        return ValueBlocks(file, reading, row)


def _names_in(scan: LineScan, name: str) -> list[str]:
    """Collect the keys of the first rows; a file of which none is an object is something else."""
    if not scan.rows:
        return []
    if scan.rows[0].lstrip().startswith(b"["):
        raise CorruptShardError(
            f"{name} is one JSON array, or holds arrays: write one object per line, as jq -c '.[]' does, or stream it"
            " with Stream(source=JsonShardedSource(..., jsonl=False))",
            path=name,
        )
    names: dict[str, None] = {}
    problem: BadRow | None = None
    has_any = False
    for row in scan.rows[:_ROWS_LOOKED_AT]:
        try:
            names.update(dict.fromkeys(parse_row(row)))
            has_any = True
        except BadRow as error:
            problem = problem or error
    if has_any:
        return list(names)
    line = scan.places[0].line
    raise CorruptShardError(f"{name} does not hold JSON lines: line {line}: {problem}", path=name, line=line)


@dataclass(frozen=True, slots=True)
class JSONParser:
    """Makes samples of lines of JSON."""

    names: tuple[str, ...]  # that were seen first
    wanted: tuple[str, ...] | None  # None: all keys

    def parse(self, rows: Sequence[bytes]) -> list[Sample]:
        """Parse all rows."""
        return parse_objects(rows)

    def parse_block(self, block: RowBlock) -> list[Sample] | None:
        """Parse lines together; None if the quick parser is not there, or does not find one object in each."""
        decoder = json_decoder()
        if decoder is None or not _are_objects(block):
            return None
        try:
            samples: list[Any] = decoder.decode_lines(block.data)
        except (ValueError, RecursionError):
            return None
        return samples if len(samples) == block.num_rows else None

    def samples(self, parsed: list[Sample]) -> list[Sample]:
        """Return those keys that are wanted."""
        return pick_fields(parsed, self.wanted)

    def columns(self, parsed: list[Sample], begin: int = 0, end: int | None = None) -> Columns:
        """Return columns of all names that were seen first, and of what else is in these rows."""
        samples = parsed[begin:end]
        if self.wanted is not None:
            return to_columns(samples, self.wanted)
        names = dict.fromkeys(self.names)
        for sample in samples:
            if sample.keys() != names.keys():
                names.update(dict.fromkeys(sample))
        return to_columns(samples, names)


def _are_objects(block: RowBlock) -> bool:
    """Return whether all rows begin and end as an object does.

    Between `}` and `{` without a comma an object ends and another begins, so no object lies over two rows: the parser,
    which takes a newline for any white space, finds as many as there are rows only if there is one in each.
    """
    codes = np.frombuffer(block.data, np.uint8)
    begins = block.bounds - block.bounds[0]
    last = codes[begins[1:-1] - 2]  # before the newline
    if (last == RETURN).any():
        last = np.where(last == RETURN, codes[begins[1:-1] - 3], last)
    return bool((codes[begins[:-1]] == _OPENING).all() and (last == _CLOSING).all())


class LinesFormat(ShardFileFormat):
    """JSON lines; each block of a compressed file is a member of its own."""

    def __init__(self, compression: str | None) -> None:
        self._codec, self._suffix = None, ""
        if compression not in (None, "none"):
            name = {"gzip": "gz", "zst": "zstd"}.get(compression, compression)
            self._codec, self._level = parse_compression(name)
            suffixes = [suffix for suffix, codec in STREAM_SUFFIXES.items() if codec == self._codec.name]
            if self._codec.name not in ("gz", "zstd", "bz2"):
                raise ConfigError(f"compression={compression!r} is unknown to jsonl: use one of gzip, zstd, bz2")
            self._suffix = suffixes[0]

    def begin(self, rows: Sequence[Sample]) -> None:
        """Lines have no columns in common."""

    def open(self, folder: Path, number: int) -> ShardBlocks:
        """Begin a file."""
        return _LinesFile(folder / f"shard-{number:05}.jsonl{self._suffix}", self)

    def encode(self, rows: Sequence[Sample], first: int) -> bytes:
        """Return rows as they are stored."""
        lines = b"".join(_line(row, first + number) for number, row in enumerate(rows))
        return lines if self._codec is None else self._codec.compress(lines, self._level)


def _line(row: Sample, number: int) -> bytes:
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        kind = ColumnTypeError if isinstance(error, TypeError) else ColumnValueError
        raise kind(f"row {number} cannot be written as JSON: {error}") from error
    return text.encode() + b"\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # of NumPy, arrays and single values
        return value.tolist()
    raise TypeError(f"it holds a {type(value).__name__}")


class _LinesFile(OneFileShard):
    def __init__(self, path: Path, form: LinesFormat) -> None:
        super().__init__(path)
        self._form = form

    def _write(self, rows: Sequence[Sample], first: int) -> None:
        self._file.write(self._form.encode(rows, first))
