"""Plain text: every line is a sample, also an empty one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import CorruptShardError
from penstock.formats.base import check_projection
from penstock.formats.files import FileFormat, ScannedFile
from penstock.formats.lines.cut import BadRow, LineFinder
from penstock.formats.lines.reader import LineReader
from penstock.formats.lines.scan import scan_lines, to_shards
from penstock.index.model import Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.formats.base import ReadOptions
    from penstock.formats.files import FileBytes, StoredObject
    from penstock.formats.lines.cut import RowBlock
    from penstock.index.model import ShardInfo, ShardLayout
    from penstock.types import Columns, Sample

COLUMN = "text"


class TextFileFormat(FileFormat):
    """Scans and opens files of plain text."""

    suffixes = (".txt", ".text")

    def scan(self, file: StoredObject, settings: Mapping[str, Any]) -> ScannedFile:  # noqa: ARG002
        """Count the lines."""
        scan, spans = scan_lines(file, LineFinder(skips_blank=False))
        if any(b"\0" in row for row in scan.head().rows):
            raise CorruptShardError(f"{file.name} contains null bytes: it is not text, or not UTF-8", path=file.name)
        shards = to_shards(spans, file, scan.num_bytes)
        return ScannedFile((Column(COLUMN, "str"),), shards)

    def check(self, layout: ShardLayout, options: ReadOptions) -> None:
        """Refuse to read columns that are not there."""
        check_projection(layout, options)

    def open(self, parts: Sequence[FileBytes], info: ShardInfo, options: ReadOptions) -> LineReader:
        """Open a span of lines."""
        self.check(info.layout, options)
        is_wanted = options.columns is None or COLUMN in options.columns
        return LineReader(parts[0], info, LineFinder(skips_blank=False), TextParser(COLUMN if is_wanted else None))


@dataclass(frozen=True, slots=True)
class TextParser:
    """Makes samples of lines of text."""

    name: str | None = COLUMN  # of the field; None if it is not wanted

    def parse(self, rows: Sequence[bytes]) -> list[str]:
        """Take off what ends the lines."""
        try:
            return [row.removesuffix(b"\n").removesuffix(b"\r").decode() for row in rows]
        except UnicodeDecodeError as error:
            raise BadRow(f"the line is not UTF-8: {error}") from error

    def parse_block(self, block: RowBlock) -> list[str] | None:
        """Parse lines that stand one after the other, which is quicker; None if one of them is at fault."""
        data = block.data
        try:
            lines = data.decode().split("\n")
        except UnicodeDecodeError:
            return None
        if data.endswith(b"\n"):
            lines.pop()
        if b"\r" in data:
            lines = [line.removesuffix("\r") for line in lines]
        return lines if len(lines) == block.num_rows else None

    def samples(self, parsed: list[str]) -> list[Sample]:
        """Return a sample for each line."""
        return [{} for _ in parsed] if self.name is None else [{self.name: text} for text in parsed]

    def columns(self, parsed: list[str], begin: int = 0, end: int | None = None) -> Columns:
        """Return the texts as a list."""
        return {} if self.name is None else {self.name: parsed[begin:end]}
