"""Plain text: every line is a sample, also an empty one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import CorruptShardError
from penstock.formats.files import ScannedFile
from penstock.formats.lines.cut import BadRow, LineFinder
from penstock.formats.lines.format import LineFormat
from penstock.formats.lines.scan import scan_lines, to_shards
from penstock.index.model import Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.formats.files import FilesReading, StoredObject
    from penstock.formats.lines.cut import RowBlock, RowFinder
    from penstock.types import Columns, Sample

COLUMN = "text"


class TextFileFormat(LineFormat):
    """Scans and opens files of plain text."""

    suffixes = (".txt", ".text")

    def scan(self, file: StoredObject, settings: Mapping[str, Any]) -> ScannedFile:  # noqa: ARG002
        """Count the lines."""
        scan = scan_lines(file, self.finder({}))
        if any(b"\0" in row for row in scan.rows):
            raise CorruptShardError(f"{file.name} contains null bytes: it is not text, or not UTF-8", path=file.name)
        shards = to_shards(scan, file)
        return ScannedFile((Column(COLUMN, "str"),), shards)

    def finder(self, settings: Mapping[str, Any]) -> RowFinder:  # noqa: ARG002
        """Find every line."""
        return LineFinder(skips_blank=False)

    def parser(self, columns: tuple[Column, ...], wanted: tuple[str, ...] | None) -> TextParser:  # noqa: ARG002
        """Make samples of one field."""
        return TextParser(COLUMN if wanted is None or COLUMN in wanted else None)

    def parser_in_order(self, name: str, header: bytes | None, reading: FilesReading) -> TextParser:  # noqa: ARG002
        """Make samples of a field that is named as `text_field` says."""
        return TextParser(reading.settings.get("text_field", COLUMN))


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
