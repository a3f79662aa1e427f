"""CSV, TSV and XSV: values between separators, with no quoting at all, under a header line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ColumnNameError, ColumnValueError, CorruptShardError
from penstock.formats.text import ENCODINGS, TextBuilder, TextFormat, TextReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.formats.base import ReadOptions, ShardBytes
    from penstock.formats.body import ChunkPool
    from penstock.index.model import ShardInfo, ShardLayout
    from penstock.types import Sample


class XSVFormat(TextFormat):
    """Opens and builds shards with any separator."""

    separator: str | None = None  # None: the layout tells
    setting_fields: tuple[str, ...] = ("newline", "separator")

    def open(self, parts: Sequence[ShardBytes], info: ShardInfo, options: ReadOptions) -> TextReader:
        """Open a shard."""
        self.check(info.layout, options)
        parser = _LineParser(info, self._separator(info.layout))
        return TextReader(parts, info, parser.parse, options)

    def builder(self, layout: ShardLayout, pool: ChunkPool) -> DelimitedBuilder:
        """Begin a shard."""
        return DelimitedBuilder(layout, pool, self._separator(layout))

    def _separator(self, layout: ShardLayout) -> str:
        return self.separator or layout.settings.get("separator") or ","


class CSVFormat(XSVFormat):
    """Opens and builds shards with commas."""

    separator = ","
    setting_fields = ("newline",)


class TSVFormat(XSVFormat):
    """Opens and builds shards with tabs."""

    separator = "\t"
    setting_fields = ("newline",)


class _LineParser:
    """Turns lines of one shard into samples."""

    def __init__(self, info: ShardInfo, separator: str) -> None:
        self._shard = info.name
        self._separator = separator
        self._newline = info.layout.settings.get("newline") or "\n"
        self._columns = [(column.name, ENCODINGS[column.encoding]) for column in info.layout.columns]

    def parse(self, lines: list[bytes], rows: list[int]) -> list[Sample]:
        return [self._parse_line(line, row) for line, row in zip(lines, rows, strict=True)]

    def _parse_line(self, line: bytes, row: int) -> Sample:
        try:
            text = line.decode()
            values = text.removesuffix(self._newline).split(self._separator)
            return {name: kind(value) for (name, kind), value in zip(self._columns, values, strict=True)}
        except ValueError as error:
            raise CorruptShardError(
                f"{self._shard}, row {row}: the line does not hold its {len(self._columns)} columns: {error}",
                shard=self._shard,
                row=row,
            ) from error


class DelimitedBuilder(TextBuilder):
    """One shard of separated values in the making."""

    def __init__(self, layout: ShardLayout, pool: ChunkPool, separator: str) -> None:
        self._separator = separator
        newline = layout.settings.get("newline") or "\n"
        names = [column.name for column in layout.columns]
        for name in names:
            if separator in name or newline in name:
                raise ColumnNameError(
                    f"column {name!r} contains the separator {separator!r} or the newline {newline!r}"
                )
        super().__init__(layout, pool, (separator.join(names) + newline).encode())

    def line(self, values: dict[str, Any]) -> str:
        """Join the values; none may contain what tells them apart, nor a piece of it that would look like it."""
        # "True" would not read back as an int.
        texts = [str(int(value) if isinstance(value, bool) else value) for value in values.values()]
        line = self._separator.join(texts)
        fields = line.split(self._separator)
        if fields == texts and self._newline not in line:
            return line
        pairs = zip(values, texts, fields, strict=False)
        name = next(name for name, text, field in pairs if text != field or self._newline in text)
        raise ColumnValueError(
            f"column {name!r} contains the separator {self._separator!r} or the newline {self._newline!r}, or ends in"
            " a piece of one, and this format has no quoting: use JSONWriter or MDSWriter",
            column=name,
        )
